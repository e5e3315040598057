//! What a server's refusal means, sorted once: one sentence for what happened, one for what to do. Never holds a secret: texts of servers
//! that repeat the request (signatures do) are left out. Next: `check.rs`.

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use std::error::Error;

/// Why a request did not do what it asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No connection, or none with TLS that is trusted. Retry once it is there.
    #[error("no server answers: {0}")]
    Unreachable(String),
    /// It did not answer in time. Retry.
    #[error("the server did not answer in time")]
    Silent,
    /// The address has no TLS and nobody allowed that. Stop.
    #[error("{endpoint} has no TLS, and services refuse that")]
    Plaintext {
        /// The server's address.
        endpoint: String,
    },
    /// Nobody said who asks. Stop.
    #[error("no credentials were found: {0}")]
    NoCredentials(String),
    /// The server does not know the access key. Stop.
    #[error("the server does not know this access key")]
    UnknownKey,
    /// The secret is not that of the access key. Stop.
    #[error("the secret key is not the one of this access key")]
    WrongSecret,
    /// Temporary credentials have run out. Stop.
    #[error("the credentials have expired")]
    Expired,
    /// The session token is not one of this access key. Stop.
    #[error("the session token is not valid")]
    WrongToken,
    /// These credentials may not do this. Stop.
    #[error("these credentials may not do this")]
    Denied,
    /// There is no such bucket. Stop.
    #[error("the bucket does not exist")]
    NoBucket,
    /// The bucket is in another region. Stop.
    #[error("the bucket is in another region{}", .0.as_ref().map(|region| format!(", {region}")).unwrap_or_default())]
    WrongRegion(Option<String>),
    /// The clocks differ by more than signatures allow. Stop.
    #[error("the server refuses the request because the clocks differ too much")]
    Skewed,
    /// The server asks for fewer requests. Retry later.
    #[error("the server asks to slow down (status {status})")]
    SlowDown {
        /// The status of its last answer.
        status: u16,
    },
    /// The server cannot do this at all. Stop.
    #[error("the server does not support this ({code})")]
    Unsupported {
        /// Its word for that.
        code: String,
    },
    /// A condition did not hold.
    #[error("the condition does not hold")]
    Condition,
    /// There is no such object, upload or setting.
    #[error("there is no such thing ({code})")]
    Missing {
        /// What is missing, in the server's word.
        code: String,
    },
    /// The answer's body ended early. Retry.
    #[error("the answer ended before its end")]
    CutShort,
    /// Anything else. Stop.
    #[error("the server refused with status {status}{}", if .code.is_empty() { String::new() } else { format!(" ({code})") })]
    Other {
        /// HTTP status; 0 if there was no answer.
        status: u16,
        /// The server's code, or what the client said.
        code: String,
    },
}

impl Fault {
    /// Sorts what came back instead of an answer.
    #[must_use]
    pub fn of<E: ProvideErrorMetadata + Error + 'static>(error: &SdkError<E, HttpResponse>) -> Self {
        match error {
            SdkError::TimeoutError(_) => Self::Silent,
            SdkError::DispatchFailure(failure) if failure.is_timeout() => Self::Silent,
            SdkError::DispatchFailure(failure) => {
                let text = innermost(failure.as_connector_error().map_or(error as &dyn Error, |error| error));
                let lower = text.to_ascii_lowercase();
                if lower.contains("credential") { Self::NoCredentials(text) } else { Self::Unreachable(text) }
            }
            SdkError::ConstructionFailure(_) => Self::NoCredentials(innermost(error)),
            _ => {
                let response = error.raw_response();
                let status = response.map_or(0, |response| response.status().as_u16());
                let region = response.and_then(|response| response.headers().get("x-amz-bucket-region"));
                let (code, message) = (error.code().unwrap_or_default(), error.message().unwrap_or_default());
                Self::of_answer(status, code, message, region)
            }
        }
    }

    /// Sorts a refusal by its parts. `region` is where the bucket is, if the server said it in a header.
    #[must_use]
    pub fn of_answer(status: u16, code: &str, message: &str, region: Option<&str>) -> Self {
        match (status, code) {
            (_, "NoSuchBucket") => Self::NoBucket,
            (_, "InvalidAccessKeyId") => Self::UnknownKey,
            (_, "SignatureDoesNotMatch") => Self::WrongSecret,
            (_, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired") => Self::Expired,
            (_, "InvalidToken" | "InvalidTokenId") => Self::WrongToken,
            (_, "RequestTimeTooSkewed" | "RequestExpired") => Self::Skewed,
            (_, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect" | "IncorrectEndpoint") => {
                Self::WrongRegion(region.map(str::to_owned).or_else(|| region_in(message)))
            }
            (301 | 307, _) => Self::WrongRegion(region.map(str::to_owned)),
            (412, _) | (_, "PreconditionFailed") => Self::Condition,
            (_, "SlowDown" | "ServiceUnavailable" | "RequestLimitExceeded" | "TooManyRequests") | (429 | 503, _) => {
                Self::SlowDown { status }
            }
            (501, _) | (_, "NotImplemented" | "MethodNotAllowed") => {
                Self::Unsupported { code: if code.is_empty() { "NotImplemented".to_owned() } else { code.to_owned() } }
            }
            (403, _) | (_, "AccessDenied") => Self::Denied,
            (404, _) => Self::Missing { code: code.to_owned() },
            _ => Self::Other { status, code: code.to_owned() },
        }
    }

    /// What whoever reads it can do.
    #[must_use]
    pub fn advice(&self) -> String {
        let text = match self {
            Self::Unreachable(_) => {
                "check AWS_ENDPOINT (and AWS_ALLOW_HTTP=true for one without TLS), the network, and, for a certificate of your own authority, SSL_CERT_FILE"
            }
            Self::Silent => "check the network and the server's load, then run this again",
            Self::Plaintext { .. } => {
                "use an address with https://, or set AWS_ALLOW_HTTP=true on a network that you trust"
            }
            Self::NoCredentials(_) => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives credentials; services read no profile files"
            }
            Self::UnknownKey => {
                "set AWS_ACCESS_KEY_ID to a key of this server; temporary ones need AWS_SESSION_TOKEN too, and some servers (MinIO) know them no more once they have expired: get new ones then"
            }
            Self::WrongSecret => "set AWS_SECRET_ACCESS_KEY to the secret that belongs to AWS_ACCESS_KEY_ID",
            Self::Expired => {
                "get new ones, and give services credentials that renew themselves (a role) or do not expire: a service cannot renew what is in its environment"
            }
            Self::WrongToken => {
                "set AWS_SESSION_TOKEN to the one that came with AWS_ACCESS_KEY_ID, or unset it for a key that does not expire"
            }
            Self::Denied => "grant it to these credentials (docs/store.md holds a policy to copy)",
            Self::NoBucket => "create it, or correct the name; Ebb creates no buckets",
            Self::WrongRegion(Some(region)) => return format!("set AWS_REGION={region}"),
            Self::WrongRegion(None) => "set AWS_REGION to the region in which the bucket was created",
            Self::Skewed => {
                "set this machine's clock by NTP (timedatectl set-ntp true); signatures hold for 15 minutes"
            }
            Self::SlowDown { .. } => {
                "run this again later; if it lasts, raise the server's limits or spread jobs over prefixes"
            }
            Self::Unsupported { .. } => "use a server, or a release of it, that has it",
            Self::Condition | Self::Missing { .. } => {
                "run this again; if it stays so, another program works under the same prefix"
            }
            Self::CutShort => "look for a proxy between here and the server that cuts answers, then run this again",
            Self::Other { .. } => "look into the server's log",
        };
        text.to_owned()
    }

    /// Whether the server answered at all.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        !matches!(self, Self::Unreachable(_) | Self::Silent | Self::NoCredentials(_))
    }
}

/// The deepest cause, which says most.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    deepest.to_string()
}

/// The region that a message names as the right one: `… expecting 'eu-west-1'`.
fn region_in(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("expecting ")?;
    let region: String =
        rest.trim_start_matches(['\'', '"']).chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    (!region.is_empty()).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_sorted_by_code_then_status() {
        let message = "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'";
        for (status, code, message, fault) in [
            (400, "AuthorizationHeaderMalformed", message, Fault::WrongRegion(Some("eu-west-1".to_owned()))),
            (403, "SignatureDoesNotMatch", "", Fault::WrongSecret),
            (403, "RequestTimeTooSkewed", "", Fault::Skewed),
            (400, "ExpiredToken", "", Fault::Expired),
            (403, "AccessDenied", "", Fault::Denied),
            (404, "NoSuchBucket", "", Fault::NoBucket),
            (404, "NoSuchKey", "", Fault::Missing { code: "NoSuchKey".to_owned() }),
            (503, "SlowDown", "", Fault::SlowDown { status: 503 }),
            (501, "", "", Fault::Unsupported { code: "NotImplemented".to_owned() }),
            (412, "PreconditionFailed", "", Fault::Condition),
            (500, "InternalError", "", Fault::Other { status: 500, code: "InternalError".to_owned() }),
        ] {
            assert_eq!(Fault::of_answer(status, code, message, None), fault);
            assert!(!fault.advice().is_empty());
        }
        assert_eq!(Fault::of_answer(301, "", "", Some("eu")), Fault::WrongRegion(Some("eu".to_owned())));
    }
}
