//! A client of the HTTP API, for the command line, the load driver and tests: one request, one answer or one [`ClientError`].
//!
//! Knows the API's manners: problems, idempotency keys, pages, commands that are decided later, event streams. What is asked and answered is `gateway-api`'s.
//! Repeats a request by itself only where that has no second effect: a submit, which carries a key, and the resumption of a stream.
//!
//! Next: `client.rs` (one request), `answer.rs` (what came back), `calls.rs` (a method for every operation of the API), `filters.rs` (what is wanted of lists), `submit.rs` (once, however often it is sent), `follow.rs` (events).

mod answer;
mod calls;
#[cfg(test)]
mod canned;
mod client;
mod error;
mod event_pages;
mod filters;
mod follow;
mod options;
mod submit;

pub use answer::Answer;
pub use calls::LogPart;
pub use client::{Body, Client};
pub use error::ClientError;
pub use event_pages::EventPages;
pub use filters::{Events, Stretch, WantedJobs, WantedLogs, WantedSlots};
pub use follow::{Event, Follower};
pub use options::ClientOptions;
pub use submit::fresh_key;
