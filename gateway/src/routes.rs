//! Every path once, with its methods and its time limit; around them the limits that hold for all.
//!
//! A request passes, from the outside in: connection limits (`infra/listener`), the door (`door.rs`), panic guard, observation
//! (`observe.rs`), admission and time limit, body limit, handler. On a job's path the next file is `handlers/jobs.rs`.

use crate::app::App;
use crate::body::BODY_LEN_MAX;
use crate::door::{self, Door};
use crate::handlers::{commands, datasets, events, fleets, health, jobs, links, logs, server};
use crate::observe::{Observer, observe};
use crate::problem::{ApiError, Kind};
use crate::read_model::Progress;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::handler::Handler;
use axum::http::{Method, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use events_schema::fields::nearest;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
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
    fn delete<T: 'static>(self, handler: impl Handler<T, Arc<App>>) -> Self {
        let methods = self.methods.into_iter().chain(["DELETE"]).collect();
        Self { methods, router: self.router.delete(handler), ..self }
    }
}

/// All paths.
fn table() -> Vec<Row> {
    vec![
        at("/v1/jobs").post(jobs::submit).get(jobs::list),
        at("/v1/jobs/{id}").get(jobs::get).delete(jobs::cancel),
        at("/v1/jobs/{id}/suspend").post(jobs::suspend),
        at("/v1/jobs/{id}/resume").post(jobs::resume),
        at("/v1/jobs/{id}/checkpoints").get(jobs::checkpoints),
        at("/v1/jobs/{id}/logs").get(logs::list),
        at("/v1/jobs/{id}/logs/{executor}").get(logs::read),
        at("/v1/jobs/{id}/model").get(jobs::model),
        at("/v1/jobs/{id}/model/link").get(links::model),
        at("/v1/jobs/{id}/events").get(events::of_job),
        at("/v1/commands/{id}").get(commands::get),
        at("/v1/events").get(events::all),
        at(DATASETS).post(datasets::register).get(datasets::list),
        at("/v1/datasets/{name}").get(datasets::get).delete(datasets::remove),
        at("/v1/fleets").get(fleets::list),
        at("/v1/fleets/{fleet}").put(fleets::put).get(fleets::get),
        at("/v1/fleets/{fleet}/offers").post(fleets::offer),
        at("/v1/fleets/{fleet}/reclaims").post(fleets::reclaim),
        at("/v1/fleets/{fleet}/recall").post(fleets::recall),
        at("/v1/fleets/{fleet}/release").post(fleets::release),
        at("/v1/fleets/{fleet}/demand").post(fleets::demand),
        at("/v1/fleets/{fleet}/events").get(events::of_fleet),
        at("/v1/slots").get(fleets::slots),
        at("/v1/server").get(server::get),
        at("/healthz").get(health::alive),
        at("/readyz").get(health::ready),
        at("/metrics").get(health::metrics),
    ]
}

/// The only path with a time limit of its own.
const DATASETS: &str = "/v1/datasets";

/// The service.
pub fn router(app: Arc<App>, door: Door) -> Router {
    let mut router = Router::new();
    let mut paths = Vec::new();
    for Row { path, methods, router: handlers } in table() {
        let time = if path == DATASETS { app.limits.registration_time } else { app.limits.request_time };
        let guard = Guard { app: app.clone(), time, api: path.starts_with("/v1") };
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
        assert_eq!(response.status(), Kind::Incident.status());
        let body = axum::body::to_bytes(response.into_body(), 4_096).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.contains("incident") && !text.contains("secret"), "{text}");
    }
}
