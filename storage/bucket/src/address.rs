//! Which bucket, and how it is reached: the address as `--store` takes it, and the `AWS_` variables as `object_store` reads them, so that
//! a check looks at the very bucket that services use. Parsing only. Next: `client.rs`.

use aws_sdk_s3::config::Credentials;
use aws_smithy_async::time::SharedTimeSource;
use std::fmt;
use url::Url;

/// A bucket and the folder in it that is Ebb's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketAddress {
    bucket: String,
    prefix: String,
}

/// Why a text is no address of a bucket. Stop: the text has to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Another kind of store, or none.
    #[error(
        "`{shown}` is no bucket: {problem}; expected s3://BUCKET/PREFIX. Only S3 stores have what these commands look at"
    )]
    NoBucket {
        /// As given, without a password.
        shown: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl BucketAddress {
    /// Reads `s3://BUCKET/PREFIX` (or `s3a:`). Amazon's `https:` forms are for `--store` only.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let wrong = |shown: &str, problem: &str| AddressError::NoBucket {
            shown: shown.to_owned(),
            problem: problem.to_owned(),
        };
        let url = Url::parse(text).map_err(|e| wrong(text.rsplit('@').next().unwrap_or_default(), &e.to_string()))?;
        let shown = format!("{}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path());
        if !matches!(url.scheme(), "s3" | "s3a") {
            return Err(wrong(&shown, "its scheme is not s3"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong(
                &shown,
                "it holds a user or a password, which belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong(&shown, "it has a query; the server's address belongs into AWS_ENDPOINT"));
        }
        let Some(bucket) = url.host_str().filter(|host| !host.is_empty()) else {
            return Err(wrong(&shown, "it names no bucket"));
        };
        Ok(Self { bucket: bucket.to_owned(), prefix: url.path().trim_matches('/').to_owned() })
    }

    /// The bucket's name.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// What all of Ebb's keys begin with: empty, or ending in a slash.
    #[must_use]
    pub fn key_prefix(&self) -> String {
        if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) }
    }

    /// The key in the bucket of a key of Ebb's.
    #[must_use]
    pub fn key(&self, key: &str) -> String {
        format!("{}{key}", self.key_prefix())
    }
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.prefix)
    }
}

/// Where the server is and who asks.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The server; Amazon's if absent.
    pub endpoint: Option<String>,
    /// The region; if absent, [`REGION`].
    pub region: Option<String>,
    /// Whether the bucket stands in the host's name instead of the path.
    pub virtual_hosted: bool,
    /// Whether requests may go out without TLS. `object_store` refuses it without `AWS_ALLOW_HTTP`, so the check does too.
    pub allow_http: bool,
    /// Credentials to use instead of those that the chain finds.
    pub credentials: Option<Credentials>,
    /// What time requests say it is.
    pub clock: SharedTimeSource,
}

/// The region if nobody names one, the same as `object_store`'s.
pub const REGION: &str = "us-east-1";

impl Access {
    /// Reads variables as `object_store` does. Credentials are left to the chain of every AWS tool (variables, profile, web identity, role of
    /// the container or the machine), in which these variables come first.
    #[must_use]
    pub fn of_environment(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let (mut access, mut endpoint_of_s3, mut default_region) = (Self::default(), None, None);
        // An empty variable is one that is not set.
        for (name, value) in variables.into_iter().filter(|(_, value)| !value.is_empty()) {
            match name.to_ascii_uppercase().as_str() {
                "AWS_ENDPOINT_URL_S3" => endpoint_of_s3 = Some(value),
                "AWS_ENDPOINT" | "AWS_ENDPOINT_URL" => access.endpoint = Some(value),
                "AWS_REGION" => access.region = Some(value),
                "AWS_DEFAULT_REGION" => default_region = Some(value),
                "AWS_ALLOW_HTTP" => access.allow_http = is_true(&value),
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST" => access.virtual_hosted = is_true(&value),
                _ => {}
            }
        }
        access.endpoint = endpoint_of_s3.or(access.endpoint).map(|endpoint| endpoint.trim_end_matches('/').to_owned());
        access.region = access.region.or(default_region);
        access
    }

    /// The same with these credentials.
    #[must_use]
    pub fn with_credentials(self, key: &str, secret: &str, session: Option<&str>) -> Self {
        let credentials = Credentials::new(key, secret, session.map(str::to_owned), None, "given");
        Self { credentials: Some(credentials), ..self }
    }
}

/// A server's address as it may be shown: what stands before its host may be a secret.
pub(crate) fn without_password(endpoint: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
            format!("{scheme}://{}{path}", authority.rsplit('@').next().unwrap_or_default())
        }
        None => endpoint.rsplit('@').next().unwrap_or_default().to_owned(),
    }
}

/// What `object_store` takes for true.
fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes" | "y")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_name_a_bucket_and_a_folder() {
        for (text, bucket, prefix, shown) in [
            ("s3://b", "b", "", "s3://b/"),
            ("s3://b/", "b", "", "s3://b/"),
            ("s3://b/a/c/", "b", "a/c/", "s3://b/a/c"),
        ] {
            let address = BucketAddress::parse(text).unwrap();
            assert_eq!((address.bucket(), address.key_prefix().as_str()), (bucket, prefix));
            assert_eq!(address.to_string(), shown);
        }
    }

    #[test]
    fn other_texts_are_refused_without_their_secrets() {
        for (text, part) in [
            ("file:///data", "scheme is not s3"),
            ("gs://b/x", "scheme is not s3"),
            ("bucket", "relative URL"),
            ("s3:///x", "no bucket"),
            ("s3://user:secret@b/x", "AWS_SECRET_ACCESS_KEY"),
            ("s3://b/x?key=secret", "AWS_ENDPOINT"),
        ] {
            let error = BucketAddress::parse(text).unwrap_err().to_string();
            assert!(
                error.contains(part) && error.contains("s3://BUCKET/PREFIX") && !error.contains("secret"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn an_endpoint_is_shown_without_its_password() {
        for (given, shown) in [
            ("https://s3.example.org:9000/a@b", "https://s3.example.org:9000/a@b"),
            ("http://user:secret@s3:1/x", "http://s3:1/x"),
            ("http://user:sec@ret@s3:1", "http://s3:1"),
            ("user:secret@s3", "s3"),
        ] {
            assert_eq!(without_password(given), shown);
        }
    }

    #[test]
    fn variables_are_read_as_the_data_path_reads_them() {
        let of = |list: &[(&str, &str)]| {
            Access::of_environment(list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        };
        let access = of(&[
            ("AWS_ENDPOINT_URL_S3", "http://s3:1/"),
            ("AWS_ENDPOINT", "http://other:1"),
            ("AWS_DEFAULT_REGION", "eu"),
            ("AWS_ALLOW_HTTP", "TRUE"),
        ]);
        assert_eq!((access.endpoint.as_deref(), access.region.as_deref()), (Some("http://s3:1"), Some("eu")));
        assert!(access.allow_http && !access.virtual_hosted && access.credentials.is_none());
        assert_eq!(of(&[("AWS_REGION", "a"), ("AWS_DEFAULT_REGION", "b")]).region.as_deref(), Some("a"));
    }
}
