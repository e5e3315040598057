//! Links by which somebody without credentials reads one object for a while, straight from the store: large files need not pass the
//! gateway. Only S3 stores give them. Whoever holds a link may read, so it is shown to its asker and nowhere else: no log, no event and
//! no error holds one.

use crate::retry::StoreFault;
use crate::store::{OpenStoreError, environment, s3_of};
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::signer::{Method, SignedUrlOptions, Signer};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long a link is good: for a download to begin by hand or in a script that was just started. A download that has begun goes on
/// after that. Credentials that end earlier end their links too.
pub const VALID: Duration = Duration::from_secs(15 * 60);

/// Where links come from: a store that signs, or nothing.
#[derive(Clone, Default)]
pub struct Links {
    signing: Option<(Arc<AmazonS3>, Path)>,
}

/// A link. Its URL is a secret as long as it is good, so its `Debug` text does not hold it.
#[derive(Clone, PartialEq, Eq)]
pub struct Link {
    url: String,
    expires_at: SystemTime,
}

impl Link {
    /// Where the object is read.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// When it stops being good; by this machine's clock, and a little early rather than late.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        self.expires_at
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("signing", &self.signing.is_some()).finish()
    }
}

impl Links {
    /// For a store that gives none.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Links into the store at this address, with credentials of the environment; none if it is not S3. Contacts nobody.
    pub fn open(address: &str) -> Result<Self, OpenStoreError> {
        Self::open_with(address, environment())
    }

    /// [`Links::open`] with these settings, named like environment variables, instead of the environment.
    pub fn open_with(
        address: &str,
        settings: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, OpenStoreError> {
        Ok(Self { signing: s3_of(address, settings)?.map(|(store, prefix)| (Arc::new(store), prefix)) })
    }

    /// A link to the object of this key, which is saved under `file_name`; nothing if this store gives no links. Whether there is such an
    /// object, it does not ask.
    pub async fn link(&self, key: &str, file_name: &str) -> Result<Option<Link>, StoreFault> {
        let Some((store, prefix)) = &self.signing else { return Ok(None) };
        let path: Path = prefix.parts().chain(Path::from(key).parts()).collect();
        let disposition = format!("attachment; filename=\"{file_name}\"");
        let options = SignedUrlOptions::new().with_query([("response-content-disposition", disposition)]);
        let expires_at = SystemTime::now() + VALID;
        let url = store.signed_url_opts(Method::GET, &path, VALID, &options).await;
        let url = url.map_err(|error| StoreFault::of(key, error))?.to_string();
        Ok(Some(Link { url, expires_at }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_link_names_object_file_and_end_but_no_secret() {
        let settings = [
            ("AWS_ENDPOINT", "https://s3.example:9000"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret-of-key"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let links = Links::open_with("s3://bucket/a/b", settings).unwrap();
        let link = links.link("jobs/job-a/model.safetensors", "job-a.safetensors").await.unwrap().unwrap();
        let url = url::Url::parse(link.url()).unwrap();
        assert_eq!((url.host_str(), url.path()), (Some("s3.example"), "/bucket/a/b/jobs/job-a/model.safetensors"));
        let query = |name: &str| url.query_pairs().find(|(n, _)| n == name).map(|(_, value)| value.into_owned());
        assert_eq!(query("X-Amz-Expires").unwrap(), VALID.as_secs().to_string());
        assert_eq!(query("response-content-disposition").unwrap(), "attachment; filename=\"job-a.safetensors\"");
        assert!(!link.url().contains("secret-of-key"));
        assert!(!format!("{link:?} {links:?}").contains("X-Amz"), "a link in a log is a leak");
    }

    #[tokio::test]
    async fn other_stores_give_none() {
        for address in ["memory:///", "file:///data"] {
            assert_eq!(Links::open_with(address, []).unwrap().link("k", "f").await.unwrap(), None);
        }
    }
}
