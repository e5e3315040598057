//! Every path of the API, in this file alone: as it stands in the router and the document (`JOB`), and filled in by clients (`job(id)`).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What paths of the API begin with; those without it are of any service.
pub const ROOT: &str = "/v1";

/// What stands in a path as it is (RFC 3986 §2.3). Whatever else somebody takes for an id stays one part of the path.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

macro_rules! paths {
    ($($(#[doc = $doc:literal])* $name:ident = $path:literal $(=> $of:ident($($part:ident),+))?;)*) => {
        $($(#[doc = $doc])* pub const $name: &str = $path;)*
        $($(
            #[doc = concat!("[`", stringify!($name), "`] of this one.")]
            #[must_use]
            pub fn $of($($part: impl std::fmt::Display),+) -> String {
                $(let $part = encoded(&$part.to_string());)+
                format!($path)
            }
        )?)*
    };
}

paths! {
    /// Submit and list jobs.
    JOBS = "/v1/jobs";
    /// One job.
    JOB = "/v1/jobs/{id}" => job(id);
    /// Checkpoint it and give its slots back.
    JOB_SUSPEND = "/v1/jobs/{id}/suspend" => job_suspend(id);
    /// Let it run again.
    JOB_RESUME = "/v1/jobs/{id}/resume" => job_resume(id);
    /// Its checkpoints.
    JOB_CHECKPOINTS = "/v1/jobs/{id}/checkpoints" => job_checkpoints(id);
    /// What its executors said: which logs there are.
    JOB_LOGS = "/v1/jobs/{id}/logs" => job_logs(id);
    /// What one of them said.
    JOB_LOG = "/v1/jobs/{id}/logs/{executor}" => job_log(id, executor);
    /// Its final model.
    JOB_MODEL = "/v1/jobs/{id}/model" => job_model(id);
    /// Where its final model lies in the store.
    JOB_MODEL_LINK = "/v1/jobs/{id}/model/link" => job_model_link(id);
    /// What happens to it.
    JOB_EVENTS = "/v1/jobs/{id}/events" => job_events(id);
    /// What became of a command.
    COMMAND = "/v1/commands/{id}" => command(id);
    /// What happens.
    EVENTS = "/v1/events";
    /// A packed folder of code.
    CODE = "/v1/code/{digest}" => code(digest);
    /// Tensors that jobs begin with.
    INITIAL = "/v1/models/{digest}" => initial(digest);
    /// Register and list datasets.
    DATASETS = "/v1/datasets";
    /// One dataset.
    DATASET = "/v1/datasets/{name}" => dataset(name);
    /// Links to a dataset's files.
    DATASET_LINKS = "/v1/datasets/{name}/links" => dataset_links(name);
    /// All fleets.
    FLEETS = "/v1/fleets";
    /// One fleet.
    FLEET = "/v1/fleets/{fleet}" => fleet(fleet);
    /// Lend slots.
    FLEET_OFFERS = "/v1/fleets/{fleet}/offers" => fleet_offers(fleet);
    /// Take slots back.
    FLEET_RECLAIMS = "/v1/fleets/{fleet}/reclaims" => fleet_reclaims(fleet);
    /// Take slots back and keep them: the red button.
    FLEET_RECALL = "/v1/fleets/{fleet}/recall" => fleet_recall(fleet);
    /// Lend again by demand.
    FLEET_RELEASE = "/v1/fleets/{fleet}/release" => fleet_release(fleet);
    /// Say how many slots a fleet needs.
    FLEET_DEMAND = "/v1/fleets/{fleet}/demand" => fleet_demand(fleet);
    /// What happens to a fleet and its slots.
    FLEET_EVENTS = "/v1/fleets/{fleet}/events" => fleet_events(fleet);
    /// All tenants.
    TENANTS = "/v1/tenants";
    /// One tenant.
    TENANT = "/v1/tenants/{tenant}" => tenant(tenant);
    /// All slots.
    SLOTS = "/v1/slots";
    /// What this service is.
    SERVER = "/v1/server";
    /// The OpenAPI document.
    OPENAPI = "/v1/openapi.json";
    /// Whether it lives.
    HEALTHZ = "/healthz";
    /// What the process counts and measures.
    METRICS = "/metrics";
    /// Whether it can do its work.
    READYZ = "/readyz";
}

fn encoded(part: &str) -> String {
    utf8_percent_encode(part, ENCODED).to_string()
}

/// The names of a path's variable parts, in order.
#[must_use]
pub fn variables(path: &str) -> Vec<&str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_parts_are_filled_in() {
        assert_eq!(job_events("job-a"), "/v1/jobs/job-a/events");
        assert_eq!(dataset("digits"), "/v1/datasets/digits");
        assert_eq!(job_log("job-a", 7), "/v1/jobs/job-a/logs/7");
        assert_eq!(variables(JOB_LOG), ["id", "executor"]);
        assert!(variables(JOBS).is_empty());
    }

    #[test]
    fn what_is_no_id_stays_one_part() {
        assert_eq!(job("a/b?c#d e"), "/v1/jobs/a%2Fb%3Fc%23d%20e");
    }
}
