//! Names of headers that this API gives a meaning, beside those of HTTP itself.

/// The same key with the same body has one effect, however often it is sent.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Longest idempotency key.
pub const IDEMPOTENCY_KEY_LEN_MAX: usize = 255;
/// The event after which a stream goes on.
pub const LAST_EVENT_ID: &str = "last-event-id";
/// Names one request in answers, problems and logs; made by the service if the client does not.
pub const REQUEST_ID: &str = "x-request-id";
/// Longest id of a request that is taken from a client.
pub const REQUEST_ID_LEN_MAX: usize = 64;
/// The place of the first byte of an answer with a log; later than asked for if what was there is gone.
pub const LOG_FROM: &str = "ebb-log-from";
/// The place behind its last byte: where to go on.
pub const LOG_NEXT: &str = "ebb-log-next";
/// The content type of problems.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// The content type of event streams.
pub const EVENT_STREAM: &str = "text/event-stream";
