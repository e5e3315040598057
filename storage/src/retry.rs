//! Faults of an object store, sorted once: what may be tried again, and what may not. Every access goes through [`retrying`].
//! Never skips anything: an access succeeds as a whole, or the caller gets the fault with the object's name in it.

use futures::future::BoxFuture;
use shell::Pauses;
use std::time::Duration;
use tokio::time::Instant;

/// How long and how densely a fault is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Before the second attempt, and as much again at most by chance; doubles from then on.
    pub first_wait: Duration,
    /// Longest wait between two attempts.
    pub wait_max: Duration,
    /// No attempt begins later than this after the first one began.
    pub deadline: Duration,
    /// An attempt that takes longer is given up and counts as a fault.
    pub attempt_max: Duration,
}

impl Default for RetryPolicy {
    /// Outlasts a restart of an S3 server or a lost network path; short enough that a job whose store is gone for good fails.
    fn default() -> Self {
        Self {
            first_wait: Duration::from_millis(50),
            wait_max: Duration::from_secs(5),
            deadline: Duration::from_secs(120),
            attempt_max: Duration::from_secs(60),
        }
    }
}

/// Slowest transfer that is not given up, bytes per second.
const SLOWEST_BYTES_PER_S: u64 = 1 << 20;

impl RetryPolicy {
    /// For what is right now and need not be in a moment: the first attempt is the last.
    pub const ONCE: Self = Self {
        first_wait: Duration::from_millis(1),
        wait_max: Duration::from_millis(1),
        deadline: Duration::ZERO,
        attempt_max: Duration::from_secs(60),
    };

    /// The same policy for an attempt that moves so many bytes.
    #[must_use]
    pub fn allowing(self, bytes: u64) -> Self {
        let transfer = Duration::from_secs(bytes / SLOWEST_BYTES_PER_S);
        Self { deadline: self.deadline + transfer, attempt_max: self.attempt_max + transfer, ..self }
    }
}

/// What went wrong with one object.
#[derive(Debug, thiserror::Error)]
pub enum StoreFault {
    /// It is not there. Stop: trying again does not bring it back.
    #[error("object `{key}` is missing from the store; check its name, or write it again")]
    Missing {
        /// Its key or address.
        key: String,
    },
    /// The store itself is not there. Stop, or wait for who makes it: [`StoreFault::is_mendable`].
    #[error(
        "the store has no such bucket or container (asked for object `{key}`); create it, or correct the store's address"
    )]
    NoStore {
        /// What was asked for.
        key: String,
        /// What the server said.
        #[source]
        source: object_store::Error,
    },
    /// It is not the one that was registered. Stop.
    #[error("object `{key}` has changed since it was registered; register it again under another name")]
    Changed {
        /// Its key or address.
        key: String,
    },
    /// The store will not do it. Stop, or wait for who gives the permission: [`StoreFault::is_mendable`].
    #[error("the store refuses access to object `{key}`; check credentials and permissions")]
    Refused {
        /// Its key or address.
        key: String,
        /// What the store said.
        #[source]
        source: object_store::Error,
    },
    /// Who asks may not any more. Stop this process: it cannot be given others, but another one may have them.
    #[error(
        "the credentials for the store have expired (asked for object `{key}`); give the process a role that renews them, or ones that do not expire"
    )]
    Expired {
        /// Its key or address.
        key: String,
        /// What the store said.
        #[source]
        source: object_store::Error,
    },
    /// An object of this key exists already. Read it back and compare.
    #[error("object `{key}` exists already")]
    Exists {
        /// Its key.
        key: String,
    },
    /// Fewer bytes came than were asked for. Retried until the deadline.
    #[error("object `{key}` ended after {found} of {expected} bytes")]
    Truncated {
        /// Its key or address.
        key: String,
        /// Bytes asked for.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// The store did not answer in time. Retried until the deadline.
    #[error("the store did not answer within {waited_ms} ms for object `{key}`")]
    Silent {
        /// Its key or address.
        key: String,
        /// How long the last attempt waited.
        waited_ms: u64,
    },
    /// Network, server or disk. Retried until the deadline.
    #[error("the store failed on object `{key}`")]
    Unreachable {
        /// Its key or address.
        key: String,
        /// What the store said last.
        #[source]
        source: object_store::Error,
    },
}

/// What S3 servers say of credentials that held once. The client takes it for a fault that passes; where it can renew them, it does so before.
const EXPIRED: [&str; 2] = ["<Code>ExpiredToken</Code>", "<Code>TokenRefreshRequired</Code>"];
/// What they say again however often they are asked, and the client takes for a fault that passes: every refusal of a listing, and status 400
/// or a redirect that leads nowhere for a token of another key and a bucket of another region.
const FINAL_REFUSALS: [&str; 8] = [
    "<Code>AccessDenied</Code>",
    "<Code>SignatureDoesNotMatch</Code>",
    "<Code>InvalidAccessKeyId</Code>",
    "<Code>RequestTimeTooSkewed</Code>",
    "<Code>InvalidToken</Code>",
    "<Code>InvalidTokenId</Code>",
    "<Code>AuthorizationHeaderMalformed</Code>",
    "incorrectly configured region",
];

/// Whether an error or a cause of it holds one of these texts; what a server answers, the client keeps as a text only.
fn says(error: &object_store::Error, texts: &[&str]) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        let told = error.to_string();
        if texts.iter().any(|text| told.contains(text)) {
            return true;
        }
        cause = error.source();
    }
    false
}

impl StoreFault {
    /// Sorts what a store said about an object.
    #[must_use]
    pub fn of(key: &str, error: object_store::Error) -> Self {
        use object_store::Error as E;
        let key = key.to_owned();
        match error {
            source if says(&source, &EXPIRED) => Self::Expired { key, source },
            source if says(&source, &["<Code>NoSuchBucket</Code>"]) => Self::NoStore { key, source },
            E::NotFound { .. } => Self::Missing { key },
            E::Precondition { .. } => Self::Changed { key },
            E::AlreadyExists { .. } => Self::Exists { key },
            source @ (E::PermissionDenied { .. }
            | E::Unauthenticated { .. }
            | E::NotSupported { .. }
            | E::NotImplemented { .. }
            | E::InvalidPath { .. }
            | E::UnknownConfigurationKey { .. }
            | E::NotModified { .. }) => Self::Refused { key, source },
            // The client takes these for faults that pass.
            source if says(&source, &FINAL_REFUSALS) => Self::Refused { key, source },
            source => Self::Unreachable { key, source },
        }
    }

    /// Whether the same access may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Truncated { .. } | Self::Silent { .. } | Self::Unreachable { .. })
    }

    /// Whether somebody may mend it while whoever asks waits: it passes by itself, or a right or a bucket comes back.
    #[must_use]
    pub fn is_mendable(&self) -> bool {
        use object_store::Error as E;
        match self {
            // Neither a path nor what a store can do becomes another one.
            Self::Refused {
                source:
                    E::NotSupported { .. }
                    | E::NotImplemented { .. }
                    | E::InvalidPath { .. }
                    | E::UnknownConfigurationKey { .. }
                    | E::NotModified { .. },
                ..
            } => false,
            Self::Refused { .. } | Self::NoStore { .. } => true,
            _ => self.is_transient(),
        }
    }

    /// Whether it lies with this process (who it is, where it looks) and not with the object: another process may have more luck.
    #[must_use]
    pub fn is_of_the_asker(&self) -> bool {
        matches!(self, Self::Expired { .. } | Self::NoStore { .. })
    }

    /// The object's key or address.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Missing { key }
            | Self::Changed { key }
            | Self::Refused { key, .. }
            | Self::Exists { key }
            | Self::Truncated { key, .. }
            | Self::Silent { key, .. }
            | Self::Unreachable { key, .. }
            | Self::Expired { key, .. }
            | Self::NoStore { key, .. } => key,
        }
    }
}

/// Runs `attempt` until it succeeds, fails for good, or the policy's deadline passes; then the last fault is the answer.
pub async fn retrying<'a, T>(
    policy: RetryPolicy,
    key: &str,
    mut attempt: impl FnMut() -> BoxFuture<'a, Result<T, StoreFault>>,
) -> Result<T, StoreFault> {
    let begun = Instant::now();
    let mut pauses = Pauses::between(policy.first_wait, policy.wait_max);
    loop {
        let outcome = tokio::time::timeout(policy.attempt_max, attempt()).await;
        let fault = match outcome {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(fault)) if !fault.is_transient() => return Err(fault),
            Ok(Err(fault)) => fault,
            Err(_) => StoreFault::Silent { key: key.to_owned(), waited_ms: policy.attempt_max.as_millis() as u64 },
        };
        let wait = pauses.after_failure();
        if begun.elapsed() + wait > policy.deadline {
            return Err(fault);
        }
        tracing::warn!(key, fault = %fault, wait_ms = wait.as_millis() as u64, "store access failed; trying again");
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures::FutureExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    const QUICK: RetryPolicy = RetryPolicy {
        first_wait: Duration::from_millis(1),
        wait_max: Duration::from_millis(4),
        deadline: Duration::from_millis(40),
        attempt_max: Duration::from_secs(1),
    };

    fn unreachable(key: &str) -> StoreFault {
        StoreFault::of(key, object_store::Error::Generic { store: "test", source: "down".into() })
    }

    #[tokio::test]
    async fn transient_faults_are_tried_again_and_final_ones_are_not() {
        let attempts = AtomicU32::new(0);
        let run = |fail: u32, last: bool| {
            let attempts = &attempts;
            retrying(QUICK, "k", move || {
                async move {
                    let n = attempts.fetch_add(1, Ordering::Relaxed);
                    if n < fail {
                        Err(if last { StoreFault::Missing { key: "k".into() } } else { unreachable("k") })
                    } else {
                        Ok(n)
                    }
                }
                .boxed()
            })
        };
        assert_eq!(run(3, false).await.unwrap(), 3);
        attempts.store(0, Ordering::Relaxed);
        assert!(matches!(run(u32::MAX, true).await, Err(StoreFault::Missing { .. })));
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
        attempts.store(0, Ordering::Relaxed);
        let fault = run(u32::MAX, false).await.unwrap_err();
        assert!(fault.key() == "k" && attempts.load(Ordering::Relaxed) > 2, "{fault}");
    }
}
