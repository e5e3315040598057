//! Every path once, with its methods and its time limit; around them the limits that hold for all.
//!
//! A request passes, from the outside in: connection limits (`infra/listener`), its name (`request_id.rs`), the door (`door.rs`), panic guard, observation
//! (`observe.rs`), admission and time limit, body limit, handler.
//!
//! Next on a job's path: `gateway/src/handlers/jobs.rs`.

use crate::app::App;
use crate::body::BODY_LEN_MAX;
use crate::door;
use crate::handlers::{code, commands, datasets, events, fleets, health, initial, jobs, links, logs, server};
use crate::handlers::{tenants, uploads};
use crate::observe::{Observer, observe};
use crate::problem::{ApiError, Kind};
use crate::read_model::Progress;
use crate::request_id;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::handler::Handler;
use axum::http::{Method, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use ebb_telemetry::metrics;
use events_schema::fields::nearest;
use gateway_api::paths;
use http_listener::door::Door;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use storage::code::PACKED_BYTES_MAX;
use tower_http::catch_panic::CatchPanicLayer;

/// One path and what it takes.
struct Row {
    path: &'static str,
    methods: Vec<&'static str>,
    router: MethodRouter<Arc<App>>,
}

/// A path that takes nothing yet.
fn at(path: &'static str) -> Row {
    Row { path, methods: Vec::new(), router: MethodRouter::new() }
}

impl Row {
    fn get<T: 'static>(self, handler: impl Handler<T, Arc<App>>) -> Self {
        let methods = self.methods.into_iter().chain(["GET", "HEAD"]).collect();
        Self { methods, router: self.router.get(handler), ..self }
    }
    fn post<T: 'static>(self, handler: impl Handler<T, Arc<App>>) -> Self {
        let methods = self.methods.into_iter().chain(["POST"]).collect();
        Self { methods, router: self.router.post(handler), ..self }
    }
    fn put<T: 'static>(self, handler: impl Handler<T, Arc<App>>) -> Self {
        let methods = self.methods.into_iter().chain(["PUT"]).collect();
        Self { methods, router: self.router.put(handler), ..self }
    }
    /// For bodies larger than the others.
    fn bodies_up_to(self, bytes: usize) -> Self {
        Self { router: self.router.layer(DefaultBodyLimit::max(bytes)), ..self }
    }
    fn delete<T: 'static>(self, handler: impl Handler<T, Arc<App>>) -> Self {
        let methods = self.methods.into_iter().chain(["DELETE"]).collect();
        Self { methods, router: self.router.delete(handler), ..self }
    }
}

/// All paths.
fn table() -> Vec<Row> {
    vec![
        at(paths::JOBS).post(jobs::submit).get(jobs::list),
        at(paths::JOB).get(jobs::get).delete(jobs::cancel),
        at(paths::JOB_SUSPEND).post(jobs::suspend),
        at(paths::JOB_RESUME).post(jobs::resume),
        at(paths::JOB_CHECKPOINTS).get(jobs::checkpoints),
        at(paths::JOB_LOGS).get(logs::list),
        at(paths::JOB_LOG).get(logs::read),
        at(paths::JOB_MODEL).get(jobs::model),
        at(paths::JOB_MODEL_LINK).get(links::model),
        at(paths::JOB_EVENTS).get(events::of_job),
        at(paths::COMMAND).get(commands::get),
        at(paths::EVENTS).get(events::all),
        at(paths::CODE).put(code::upload).get(uploads::code).bodies_up_to(PACKED_BYTES_MAX),
        // It counts what it takes itself, as it comes.
        at(paths::INITIAL).put(initial::upload).get(uploads::model).bodies_up_to(usize::MAX),
        at(paths::DATASETS).post(datasets::register).get(datasets::list),
        at(paths::DATASET).get(datasets::get).delete(datasets::remove),
        at(paths::DATASET_LINKS).get(links::dataset),
        at(paths::FLEETS).get(fleets::list),
        at(paths::FLEET).put(fleets::put).get(fleets::get),
        at(paths::FLEET_OFFERS).post(fleets::offer),
        at(paths::FLEET_RECLAIMS).post(fleets::reclaim),
        at(paths::FLEET_RECALL).post(fleets::recall),
        at(paths::FLEET_RELEASE).post(fleets::release),
        at(paths::FLEET_DEMAND).post(fleets::demand),
        at(paths::FLEET_EVENTS).get(events::of_fleet),
        at(paths::SLOTS).get(fleets::slots),
        at(paths::TENANTS).get(tenants::list),
        at(paths::TENANT).get(tenants::get).put(tenants::put).delete(tenants::remove),
        at(paths::SERVER).get(server::get),
        at(paths::OPENAPI).get(server::openapi),
        at(paths::HEALTHZ).get(health::alive),
        at(paths::READYZ).get(health::ready),
        at(paths::METRICS).get(metrics::answer),
    ]
}

/// The service.
pub fn router(app: Arc<App>, door: Door) -> Router {
    let mut router = Router::new();
    let mut paths = Vec::new();
    for Row { path, methods, router: handlers } in table() {
        let time = match path {
            paths::DATASETS => app.limits.registration_time,
            paths::INITIAL => app.limits.upload_time,
            _ => app.limits.request_time,
        };
        let guard = Guard { app: app.clone(), time, api: path.starts_with(paths::ROOT) };
        let allowed: Arc<str> = methods.join(", ").into();
        let handlers = handlers
            .fallback(move |method: Method, uri: Uri| async move { wrong_method(&method, uri.path(), &allowed) });
        let observer = Observer::new(path, guard.api);
        let handlers = handlers.layer(from_fn_with_state(guard, admit));
        router = router.route(path, handlers.layer(from_fn_with_state(observer, observe)));
        paths.push(path);
    }
    let paths: Arc<[&'static str]> = paths.into();
    router
        .fallback(move |uri: Uri| async move { unknown_path(&paths, uri.path()) })
        .layer(DefaultBodyLimit::max(BODY_LEN_MAX))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::new(door), door::guard))
        .layer(from_fn(request_id::named))
        .with_state(app)
}

#[derive(Clone)]
struct Guard {
    app: Arc<App>,
    time: Duration,
    /// Whether it is part of the API, and not a question whether the process lives: that is answered also when all places are
    /// taken, and before the read model is of the present.
    api: bool,
}

/// Lets a request in if there is a place for it and the read model is of the present, and bounds its time.
async fn admit(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let place = guard.app.requests.try_acquire();
    if guard.api && place.is_err() {
        let detail = format!(
            "{} requests are in work, the most there may be; try again in a moment",
            guard.app.limits.requests_max
        );
        return ApiError::new(Kind::Overloaded, detail).into_response();
    }
    if guard.api && guard.app.model.progress() == Progress::CatchingUp {
        return ApiError::new(Kind::NotReady, "what stands in the log is still being read; try again in a moment")
            .into_response();
    }
    match tokio::time::timeout(guard.time, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!(
                "not done within {} s; it may still have an effect, so look before sending it again",
                guard.time.as_secs()
            );
            ApiError::new(Kind::TimedOut, detail).into_response()
        }
    }
}

fn unknown_path(paths: &[&'static str], given: &str) -> ApiError {
    let filled: Vec<String> = paths.iter().map(|path| filled_in(path, given)).collect();
    let expected = match nearest(given, filled.iter().map(String::as_str)) {
        Some(near) => format!("a path of this API; did you mean `{near}`?"),
        None => format!("a path of this API: {}", paths.join(", ")),
    };
    ApiError::of_field(Kind::UnknownPath, "path", given, expected)
}

/// A path of the table with its variable parts taken from the path that was asked for.
fn filled_in(path: &str, given: &str) -> String {
    let mut segments = given.split('/');
    let fill = |part: &str| match (segments.next(), part.starts_with('{')) {
        (Some(segment), true) if !segment.is_empty() => segment.to_owned(),
        _ => part.to_owned(),
    };
    path.split('/').map(fill).collect::<Vec<_>>().join("/")
}

fn wrong_method(method: &Method, path: &str, allowed: &str) -> ApiError {
    let expected = format!("one of {allowed} at {path}");
    ApiError::of_field(Kind::MethodNotAllowed, "method", method.as_str(), expected).with_header(header::ALLOW, allowed)
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    ApiError::incident(text.unwrap_or("a panic without a text")).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_document_holds_every_operation_and_nothing_else() {
        let routed = table().into_iter().flat_map(|row| {
            let methods = row.methods.into_iter().filter(|method| *method != "HEAD");
            methods.map(move |method| (method, row.path)).collect::<Vec<_>>()
        });
        let documented = gateway_api::operations::operations();
        let documented = documented.iter().map(|operation| (operation.method, operation.path));
        assert_eq!(routed.collect::<BTreeSet<_>>(), documented.collect::<BTreeSet<_>>());
    }

    #[test]
    fn unknown_paths_name_the_nearest() {
        let paths: Vec<_> = table().into_iter().map(|row| row.path).collect();
        let cases = [
            ("/v1/job", "`/v1/jobs`"),
            ("/v1/jobs/", "`/v1/jobs`"),
            ("/v1/jobs/job-a/suspended", "`/v1/jobs/job-a/suspend`"),
            ("/v1/fleets/chat/demands", "`/v1/fleets/chat/demand`"),
            ("/health", "`/healthz`"),
        ];
        for (given, near) in cases {
            let detail = unknown_path(&paths, given).detail;
            assert!(detail.contains(near), "{given}: {detail}");
        }
    }

    #[tokio::test]
    async fn a_panic_says_an_incident_and_nothing_else() {
        let response = panicked(Box::new("secret".to_owned()));
        assert_eq!(response.status().as_u16(), Kind::Incident.status());
        let body = axum::body::to_bytes(response.into_body(), 4_096).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("incident") && !text.contains("secret"), "{text}");
    }
}
