//! Whether it lives, and whether it can do its work.

use super::Shared;
use crate::problem::{ApiError, Kind};
use crate::read_model::Progress;
use axum::Json;
use axum::extract::State;
use events_log::Stream;
use gateway_api::Health;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest wait for the log in a readiness check: probes of Kubernetes give up after a second unless told otherwise.
const LOG_WAIT: Duration = Duration::from_millis(900);

/// `GET /healthz`: alive.
pub async fn alive() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

/// `GET /readyz`: the read model has caught up, the log answers, what clients look for is set up, and the gateway is to stay.
pub async fn ready(State(app): Shared) -> Result<Json<Health>, ApiError> {
    let not_ready = |why: &str| Err(ApiError::new(Kind::NotReady, why));
    if app.leaving.is_cancelled() {
        return not_ready("this gateway is about to stop; ask another one");
    }
    if !app.set_up.load(Ordering::Relaxed) {
        return not_ready("what a first start declares (a fleet, the digits) is still being declared");
    }
    let read = match app.model.progress() {
        Progress::CatchingUp => return not_ready("what stands in the log is still being read"),
        Progress::Stopped => return not_ready("the read model has stopped; restart the gateway"),
        Progress::Disturbed(_) => return not_ready("the log cannot be read at the moment"),
        Progress::Following(next) => next,
    };
    match tokio::time::timeout(LOG_WAIT, app.log.end(Stream::Events, app.cell)).await {
        Ok(Ok(end)) if end >= read => Ok(Json(Health { status: "ok".to_owned() })),
        Ok(Ok(_)) => not_ready(
            "the log ends before what was read of it: it was emptied, or an older copy of it took over, and what is answered here may not be in it",
        ),
        Ok(Err(_)) | Err(_) => not_ready("the log does not answer"),
    }
}
