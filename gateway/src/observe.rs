//! What others may see of a request: a span that goes on from the client's `traceparent`, and its duration by route, method and status. Decides
//! nothing. Within the handler `ebb_telemetry::current` gives the span.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use ebb_telemetry::metrics::{Histogram, seconds};
use ebb_telemetry::{HopKind, KeyValue, NewHop};
use events_schema::trace::{TRACEPARENT, TraceContext};
use std::time::Instant;

/// What watches one route.
#[derive(Clone)]
pub struct Observer {
    route: &'static str,
    /// Whether requests get a span: questions whether the process lives do not.
    traced: bool,
    duration: Histogram<f64>,
}

impl Observer {
    /// Of a route. All have the same histogram.
    #[must_use]
    pub fn new(route: &'static str, traced: bool) -> Self {
        Self {
            route,
            traced,
            duration: seconds("http.server.request.duration", "Time from a request's head to its answer's head"),
        }
    }
}

/// Lets a request through and looks at it.
pub async fn observe(State(observer): State<Observer>, request: Request, next: Next) -> Response {
    let (begun, method) = (Instant::now(), known(request.method()));
    let said = request.headers().get(TRACEPARENT).map(HeaderValue::as_bytes);
    let hop = if observer.traced && ebb_telemetry::is_on() {
        let name = format!("{method} {}", observer.route);
        NewHop::new(name, HopKind::Server).after(TraceContext::of_header(said)).begin()
    } else {
        None
    };
    let path = hop.as_ref().map(|_| request.uri().path().to_owned());
    let response = match &hop {
        Some(hop) => hop.around(next.run(request)).await,
        None => next.run(request).await,
    };
    let status = i64::from(response.status().as_u16());
    if let Some(hop) = hop {
        hop.set("http.request.method", method);
        hop.set("http.route", observer.route);
        hop.set("url.path", path.unwrap_or_default());
        hop.set("http.response.status_code", status);
        if response.status().is_server_error() {
            hop.fail("");
        }
        hop.end();
    }
    let labels = [
        KeyValue::new("http.request.method", method),
        KeyValue::new("http.route", observer.route),
        KeyValue::new("http.response.status_code", status),
    ];
    observer.duration.record(begun.elapsed().as_secs_f64(), &labels);
    response
}

/// Methods are a set that clients choose from; whatever else they write is one more.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "_OTHER",
    }
}
