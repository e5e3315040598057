//! Every path of the API: as it stands in the router and the document, and filled in by clients.

/// Submit and list jobs.
pub const JOBS: &str = "/v1/jobs";
/// One job.
pub const JOB: &str = "/v1/jobs/{id}";
/// Checkpoint it and give its slots back.
pub const JOB_SUSPEND: &str = "/v1/jobs/{id}/suspend";
/// Let it run again.
pub const JOB_RESUME: &str = "/v1/jobs/{id}/resume";
/// Its checkpoints.
pub const JOB_CHECKPOINTS: &str = "/v1/jobs/{id}/checkpoints";
/// What its executors said: which logs there are.
pub const JOB_LOGS: &str = "/v1/jobs/{id}/logs";
/// What one of them said.
pub const JOB_LOG: &str = "/v1/jobs/{id}/logs/{executor}";
/// Its final model.
pub const JOB_MODEL: &str = "/v1/jobs/{id}/model";
/// Where its final model lies in the store.
pub const JOB_MODEL_LINK: &str = "/v1/jobs/{id}/model/link";
/// What happens to it.
pub const JOB_EVENTS: &str = "/v1/jobs/{id}/events";
/// What became of a command.
pub const COMMAND: &str = "/v1/commands/{id}";
/// What happens.
pub const EVENTS: &str = "/v1/events";
/// A packed folder of code.
pub const CODE: &str = "/v1/code/{digest}";
/// Tensors that jobs begin with.
pub const INITIAL: &str = "/v1/models/{digest}";
/// Register and list datasets.
pub const DATASETS: &str = "/v1/datasets";
/// One dataset.
pub const DATASET: &str = "/v1/datasets/{name}";
/// Links to a dataset's files.
pub const DATASET_LINKS: &str = "/v1/datasets/{name}/links";
/// All fleets.
pub const FLEETS: &str = "/v1/fleets";
/// One fleet.
pub const FLEET: &str = "/v1/fleets/{fleet}";
/// Lend slots.
pub const FLEET_OFFERS: &str = "/v1/fleets/{fleet}/offers";
/// Take slots back.
pub const FLEET_RECLAIMS: &str = "/v1/fleets/{fleet}/reclaims";
/// Take slots back and keep them: the red button.
pub const FLEET_RECALL: &str = "/v1/fleets/{fleet}/recall";
/// Lend again by demand.
pub const FLEET_RELEASE: &str = "/v1/fleets/{fleet}/release";
/// Say how many slots a fleet needs.
pub const FLEET_DEMAND: &str = "/v1/fleets/{fleet}/demand";
/// What happens to a fleet and its slots.
pub const FLEET_EVENTS: &str = "/v1/fleets/{fleet}/events";
/// All slots.
pub const SLOTS: &str = "/v1/slots";
/// What this service is.
pub const SERVER: &str = "/v1/server";
/// The OpenAPI document.
pub const OPENAPI: &str = "/v1/openapi.json";
/// Whether it lives.
pub const HEALTHZ: &str = "/healthz";
/// What the process counts and measures.
pub const METRICS: &str = "/metrics";
/// Whether it can do its work.
pub const READYZ: &str = "/readyz";

/// A path with its one variable part filled in.
#[must_use]
pub fn with(path: &str, id: &str) -> String {
    let (before, rest) = path.split_once('{').unwrap_or((path, ""));
    let after = rest.split_once('}').map_or("", |(_, after)| after);
    format!("{before}{id}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_parts_are_filled_in() {
        assert_eq!(with(JOB_EVENTS, "job-a"), "/v1/jobs/job-a/events");
        assert_eq!(with(DATASET, "digits"), "/v1/datasets/digits");
    }
}
