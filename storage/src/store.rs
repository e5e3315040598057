//! One address, one store: `file:///folder`, `s3://bucket/prefix` and whatever else `object_store` knows; `memory:///` for
//! tests and tools, as only its own process sees it. Others hold a plain `Arc<dyn ObjectStore>` whose keys begin below the address.
//!
//! What a store must do for Ebb: a `put` that returned survives a crash (local files and their folders are synced; an S3 server
//! answers for itself), and `PutMode::Create` lets one writer win. Credentials come from the environment, never from specs or
//! facts. Next: `storage/keys/src/lib.rs`.

use crate::retry::StoreFault;
use futures::StreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// Why an address gives no store. All of them: stop and show it, the address or the environment has to change.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum OpenStoreError {
    /// Not a URL, or of no kind we know.
    #[error(
        "`{address}` is not a store address: {problem}; expected file:///absolute/folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
    )]
    Address {
        /// As given, without a password.
        address: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The local folder cannot be created or used.
    #[error("folder `{folder}` of store `{address}` cannot be used; create it, or choose one that this user may write")]
    Folder {
        /// As given.
        address: String,
        /// The folder.
        folder: String,
        #[source]
        source: std::io::Error,
    },
    /// Where the server is said to be cannot be understood.
    #[error("{name} is `{value}`, which is no address of a server; expected http://HOST:PORT or https://HOST")]
    Endpoint {
        /// The setting.
        name: String,
        /// As given, without a password.
        value: String,
    },
    /// The client cannot be built.
    #[error(
        "store `{address}` cannot be set up; for S3 set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and, for another server than Amazon's, AWS_ENDPOINT (and AWS_ALLOW_HTTP=true without TLS)"
    )]
    Setup {
        /// As given, without a password.
        address: String,
        /// What the client said.
        #[source]
        source: object_store::Error,
    },
}

/// The client's own retries are for blips; longer faults are `retry.rs`'s, which knows the caller's deadline.
const CLIENT_RETRIES_MAX: usize = 3;
const CLIENT_RETRY_TIME_MAX: Duration = Duration::from_secs(15);
/// Beginnings of the environment variables that a store's client may read.
const ENVIRONMENT_PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Opens the store at an address. Creates the folder of a `file:` address. Does not contact a server; see [`probe`].
pub fn open_store(address: &str) -> Result<Arc<dyn ObjectStore>, OpenStoreError> {
    open_store_with(address, environment())
}

/// [`open_store`] with these settings, named like environment variables, instead of the environment.
pub fn open_store_with(
    address: &str,
    settings: impl IntoIterator<Item = (String, String)>,
) -> Result<Arc<dyn ObjectStore>, OpenStoreError> {
    let url = parse_address(address)?;
    let setup = |source| OpenStoreError::Setup { address: shown(&url), source };
    if url.scheme() == "file" {
        let folder = local_folder(&url)?;
        let unusable =
            |source| OpenStoreError::Folder { address: shown(&url), folder: folder.display().to_string(), source };
        std::fs::create_dir_all(&folder).map_err(unusable)?;
        let store = LocalFileSystem::new_with_prefix(&folder).map_err(setup)?;
        return Ok(Arc::new(store.with_fsync(true)));
    }
    let (store, prefix) = open_remote(&url, settings)?;
    Ok(if prefix.as_ref().is_empty() { store } else { Arc::new(PrefixStore::new(store, prefix)) })
}

/// Opens the store that holds one object or folder outside Ebb's own store, and gives its path there.
///
/// `file:` addresses are read only through this, so nothing is created. An absolute path is taken as a `file:` address.
pub fn open_object(address: &str) -> Result<(Arc<dyn ObjectStore>, Path), OpenStoreError> {
    let given = if address.starts_with('/') { format!("file://{address}") } else { address.to_owned() };
    let url = parse_address(&given)?;
    if url.scheme() != "file" {
        return open_remote(&url, environment());
    }
    let path = Path::from_absolute_path(local_folder(&url)?).map_err(|e| wrong(&given, e.to_string()))?;
    Ok((Arc::new(LocalFileSystem::new()), path))
}

/// Asks the store what begins with a name that need not exist: an error now instead of in the middle of a job. A listing, because a
/// missing bucket and a missing object are the same to other requests.
pub async fn probe(store: &dyn ObjectStore) -> Result<(), StoreFault> {
    const PREFIX: &str = "probe";
    match store.list(Some(&Path::from(PREFIX))).next().await {
        None | Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(StoreFault::of(PREFIX, error)),
    }
}

/// Whether it is the address of a store, as far as its text tells.
pub fn check_address(address: &str) -> Result<(), OpenStoreError> {
    parse_address(address).map(drop)
}

fn parse_address(address: &str) -> Result<Url, OpenStoreError> {
    let url = Url::parse(address).map_err(|e| wrong(address, e.to_string()))?;
    if url.scheme() == "memory" {
        return Ok(url);
    }
    ObjectStoreScheme::parse(&url).map_err(|_| wrong(&shown(&url), "no kind of store that is known".to_owned()))?;
    Ok(url)
}

pub(crate) fn environment() -> impl Iterator<Item = (String, String)> {
    // `vars_os`, because a variable of others that is not UTF-8 is no reason to stop.
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| ENVIRONMENT_PREFIXES.iter().any(|p| name.starts_with(p)))
}

fn wrong(address: &str, problem: String) -> OpenStoreError {
    OpenStoreError::Address { address: without_secrets(address), problem }
}

fn local_folder(url: &Url) -> Result<std::path::PathBuf, OpenStoreError> {
    url.to_file_path().map_err(|()| wrong(url.as_str(), "a file: address needs an absolute path".to_owned()))
}

fn open_remote(
    url: &Url,
    settings: impl IntoIterator<Item = (String, String)>,
) -> Result<(Arc<dyn ObjectStore>, Path), OpenStoreError> {
    let setup = |source| OpenStoreError::Setup { address: shown(url), source };
    let (scheme, path) = match url.scheme() {
        "memory" => (ObjectStoreScheme::Memory, Path::from(url.path().trim_matches('/'))),
        _ => ObjectStoreScheme::parse(url).map_err(|e| wrong(&shown(url), e.to_string()))?,
    };
    match scheme {
        ObjectStoreScheme::Memory => Ok((Arc::new(InMemory::new()), path)),
        ObjectStoreScheme::AmazonS3 => Ok((Arc::new(s3(url, settings)?), path)),
        _ => {
            let (store, path) = object_store::parse_url_opts(url, settings).map_err(setup)?;
            Ok((store.into(), path))
        }
    }
}

/// The S3 store at an address and the path of Ebb's keys in its bucket; nothing if it is another kind of store.
pub(crate) fn s3_of(
    address: &str,
    settings: impl IntoIterator<Item = (String, String)>,
) -> Result<Option<(AmazonS3, Path)>, OpenStoreError> {
    let url = parse_address(address)?;
    match ObjectStoreScheme::parse(&url) {
        Ok((ObjectStoreScheme::AmazonS3, path)) => Ok(Some((s3(&url, settings)?, path))),
        _ => Ok(None),
    }
}

fn s3(url: &Url, settings: impl IntoIterator<Item = (String, String)>) -> Result<AmazonS3, OpenStoreError> {
    s3_builder(url, settings)?.build().map_err(|source| OpenStoreError::Setup { address: shown(url), source })
}

fn s3_builder(
    url: &Url,
    settings: impl IntoIterator<Item = (String, String)>,
) -> Result<AmazonS3Builder, OpenStoreError> {
    let retry =
        RetryConfig { max_retries: CLIENT_RETRIES_MAX, retry_timeout: CLIENT_RETRY_TIME_MAX, ..RetryConfig::default() };
    let (mut given, mut encrypted) = (Vec::new(), true);
    // An empty variable is one that is not set.
    for (name, value) in settings.into_iter().filter(|(_, value)| !value.is_empty()) {
        let Ok(key) = name.to_ascii_lowercase().parse() else { continue };
        if matches!(key, AmazonS3ConfigKey::Endpoint | AmazonS3ConfigKey::S3Endpoint) {
            // The client panics at its first request to such an address.
            if !is_server(&value) {
                return Err(OpenStoreError::Endpoint { name, value: without_secrets(&value) });
            }
            encrypted &= Url::parse(&value).is_ok_and(|endpoint| endpoint.scheme() == "https");
        }
        given.push((key, value));
    }
    // By TLS a body arrives as it was sent: its SHA-256 in the request's signature would be one more pass over all that is written, and the slowest.
    let builder = AmazonS3Builder::new().with_url(url.as_str()).with_retry(retry).with_unsigned_payload(encrypted);
    Ok(given.into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value)))
}

fn is_server(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

/// An address as people and other programs may see it: without a password, without a user unless it says where (`abfss`), and
/// without a query, where some stores take keys.
#[must_use]
pub fn without_secrets(address: &str) -> String {
    match Url::parse(address) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() || url.query().is_some() => shown(&url),
        Ok(_) => address.to_owned(),
        // What is no address may still hold a password.
        Err(_) => address.rsplit_once('@').map_or(address, |(_, rest)| rest).to_owned(),
    }
}

fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Both fail only where there is nothing to hide.
    let _ = url.set_password(None);
    if !matches!(url.scheme(), "abfs" | "abfss") {
        let _ = url.set_username("");
    }
    url.set_query(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use object_store::ObjectStoreExt;

    #[test]
    fn bad_addresses_are_named() {
        for (address, part) in [
            ("", "relative URL"),
            ("/data", "relative URL"),
            ("ftp://host/x", "no kind of store"),
            ("file://host/x", "no kind of store"),
            ("s3:///x", "no kind of store"),
        ] {
            let error = open_store(address).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("file:///absolute/folder"), "{address}: {error}");
        }
        for address in [
            "ftp://user:secret@host/x",
            "s3//user:secret@bucket",
            "ftp://host/x?sig=secret",
            "file://user:secret@host/x",
        ] {
            let error = open_store(address).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        for (address, told) in [
            ("s3://user:secret@bucket/a", "s3://bucket/a"),
            ("abfss://container@account.example/a", "abfss://container@account.example/a"),
            ("az://container/a?sig=secret", "az://container/a"),
            ("s3://bucket/a b", "s3://bucket/a b"),
        ] {
            assert_eq!(without_secrets(address), told);
        }
    }

    #[test]
    fn a_server_s_address_that_is_none_is_named_before_anything_is_asked_of_it() {
        for name in ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"] {
            for value in ["localhost:9000", "http://", "minio", "ftp://user:secret@host"] {
                let settings = [(name.to_owned(), value.to_owned())];
                let error = open_store_with("s3://bucket/x", settings).unwrap_err().to_string();
                assert!(error.contains(name) && error.contains("http://HOST:PORT"), "{value}: {error}");
                assert!(!error.contains("secret"), "{error}");
            }
            for value in ["", "http://127.0.0.1:9000", "https://s3.example"] {
                open_store_with("s3://bucket/x", [(name.to_owned(), value.to_owned())]).unwrap();
            }
        }
    }

    #[test]
    fn bodies_are_signed_where_nothing_else_protects_them() {
        let unsigned = |settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let builder = s3_builder(&Url::parse("s3://bucket/x").unwrap(), settings).unwrap();
            builder.get_config_value(&AmazonS3ConfigKey::UnsignedPayload).unwrap()
        };
        let (plain, own) = (("AWS_ENDPOINT", "http://127.0.0.1:9000"), ("AWS_UNSIGNED_PAYLOAD", "false"));
        assert_eq!(unsigned(&[]), "true");
        assert_eq!(unsigned(&[("AWS_ENDPOINT_URL", "https://s3.example")]), "true");
        assert_eq!(unsigned(&[plain]), "false");
        assert_eq!(unsigned(&[plain, ("AWS_ENDPOINT_URL_S3", "https://s3.example")]), "false");
        assert_eq!(unsigned(&[own]), "false", "what is said counts");
    }

    #[tokio::test]
    async fn a_local_store_begins_at_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("file://{}/a b/store", folder.path().display());
        let store = open_store(&address).unwrap();
        store.put(&Path::from("x/y"), "1".into()).await.unwrap();
        assert_eq!(std::fs::read(folder.path().join("a b/store/x/y")).unwrap(), b"1");
        probe(store.as_ref()).await.unwrap();
        let (outside, path) = open_object(&format!("{}/a b/store/x/y", folder.path().display())).unwrap();
        assert_eq!(outside.get(&path).await.unwrap().bytes().await.unwrap().as_ref(), b"1");
    }
}
