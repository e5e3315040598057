//! One bucket through `aws-sdk-s3`, with bounded waits and retries, and the server's clock as its answers tell it. Decides nothing.
//! Next: `probe.rs`.

use crate::address::{Access, BucketAddress, REGION, without_password};
use crate::fault::Fault;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{
    ConfigBag, Intercept, ProvideCredentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    RuntimeComponents,
};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// A server that takes longer for a connection is not one to train on.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// One attempt: objects here have a few bytes.
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(10);
/// One request with its attempts and waits.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// A blip is no finding, a server that says so three times in a row is one.
const ATTEMPTS_MAX: u32 = 3;
/// Longest wait between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Finding credentials, which may ask the machine's metadata service.
const CREDENTIALS_TIME_MAX: Duration = Duration::from_secs(15);

/// A bucket that can be asked.
#[derive(Debug, Clone)]
pub struct Bucket {
    pub(crate) client: Client,
    pub(crate) address: BucketAddress,
    pub(crate) clock: Clock,
    /// Who asks, as people may see it.
    pub(crate) identity: String,
}

impl Bucket {
    /// Finds credentials and sets the client up; asks the bucket nothing yet.
    pub async fn open(address: BucketAddress, access: &Access) -> Result<Self, Fault> {
        if let Some(endpoint) = access.endpoint.as_deref().filter(|e| e.starts_with("http://") && !access.allow_http) {
            return Err(Fault::Plaintext { endpoint: without_password(endpoint) });
        }
        let config = configuration(access).await;
        let identity = identity(&config).await?;
        let clock = Clock::default();
        let mut builder = aws_sdk_s3::config::Builder::from(&config)
            .force_path_style(access.endpoint.is_some() && !access.virtual_hosted)
            // The bare requests that `object_store` makes: a server that lacks these additions is still one that Ebb can use.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            // A wrong clock is a finding here; services would not correct it.
            .disable_clock_skew_correction(true)
            .interceptor(clock.clone());
        if let Some(endpoint) = &access.endpoint {
            // With the bucket in the host's name, `object_store` is given it there; this client puts it there by itself.
            let bare = if access.virtual_hosted {
                endpoint.replacen(&format!("://{}.", address.bucket()), "://", 1)
            } else {
                endpoint.clone()
            };
            builder = builder.endpoint_url(bare);
        }
        Ok(Self { client: Client::from_conf(builder.build()), address, clock, identity })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> &BucketAddress {
        &self.address
    }

    /// Its name, for requests.
    pub(crate) fn name(&self) -> &str {
        self.address.bucket()
    }
}

async fn configuration(access: &Access) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIME_MAX)
        .operation_attempt_timeout(ATTEMPT_TIME_MAX)
        .operation_timeout(REQUEST_TIME_MAX)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(access.region.clone().unwrap_or_else(|| REGION.to_owned())))
        .timeout_config(timeouts)
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS_MAX).with_max_backoff(WAIT_MAX))
        .time_source(access.clock.clone());
    if let Some(credentials) = &access.credentials {
        loader = loader.credentials_provider(credentials.clone());
    }
    loader.load().await
}

/// The beginning of the access key that the chain finds, and how long it holds.
async fn identity(config: &SdkConfig) -> Result<String, Fault> {
    let Some(provider) = config.credentials_provider() else { return Err(Fault::NoCredentials(String::new())) };
    let found = tokio::time::timeout(CREDENTIALS_TIME_MAX, provider.provide_credentials()).await;
    let credentials = match found {
        Ok(Ok(credentials)) => credentials,
        Ok(Err(error)) => {
            return Err(Fault::NoCredentials(error.source().map_or_else(|| error.to_string(), ToString::to_string)));
        }
        Err(_) => return Err(Fault::NoCredentials("the sources of credentials did not answer".to_owned())),
    };
    let temporary = if credentials.session_token().is_some() { ", temporary" } else { "" };
    let until =
        credentials.expiry().map(|at| format!(" until {}", humantime::format_rfc3339_seconds(at))).unwrap_or_default();
    Ok(format!("access key {}{temporary}{until}", masked(credentials.access_key_id())))
}

/// An access key is no secret, but enough of it says which one it is.
fn masked(key: &str) -> String {
    const SHOWN: usize = 4;
    let begin: String = key.chars().take(SHOWN).collect();
    format!("{begin}…")
}

/// This machine's time and the server's, as of its last answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    heard: Arc<Mutex<Option<Heard>>>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    here: SystemTime,
    there: SystemTime,
}

impl Clock {
    /// By how much the server's clock is ahead of this one's, in seconds (to the second, as servers tell it); nothing before an answer.
    pub(crate) fn ahead_s(&self) -> Option<i64> {
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let Heard { here, there } = heard?;
        let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        Some(match there.duration_since(here) {
            Ok(ahead) => seconds(ahead),
            Err(behind) => -seconds(behind.duration()),
        })
    }

    /// This moment by the server's clock, or by this machine's before an answer.
    pub(crate) fn now_there(&self) -> SystemTime {
        let now = SystemTime::now();
        let ahead = self.ahead_s().unwrap_or(0);
        let by = Duration::from_secs(ahead.unsigned_abs());
        if ahead >= 0 { now.checked_add(by) } else { now.checked_sub(by) }.unwrap_or(now)
    }
}

impl Intercept for Clock {
    fn name(&self) -> &'static str {
        "the server's clock"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        components: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let here = components.time_source().map_or_else(SystemTime::now, |source| source.now());
        let date = context.response().headers().get("date");
        let date = date.and_then(|text| DateTime::from_str(text, DateTimeFormat::HttpDate).ok());
        if let Some(there) = date.and_then(|date| SystemTime::try_from(date).ok()) {
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Heard { here, there });
        }
        Ok(())
    }
}
