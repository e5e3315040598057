//! Places from which datasets may be registered: folders of this machine and prefixes of stores, named by whoever runs the service.
//! A service reads with its own permissions, so without this anybody who may ask could read whatever it can.
//!
//! What lies outside is refused by its address alone, so nothing can be learned about it. Links are followed before that is said.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use url::Url;

/// One place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetRoot(Place);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// A folder as it was named, and where it really is.
    Folder { named: PathBuf, real: PathBuf },
    /// Scheme, host and the first segments of the path of an address.
    Prefix(Url),
}

/// Why a place cannot be one. Refuse it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum RootError {
    /// The folder cannot be found.
    #[error("folder `{folder}` cannot be used for datasets; name one that exists and that this user may read")]
    Folder {
        /// As given.
        folder: String,
        #[source]
        source: std::io::Error,
    },
    /// Not an address.
    #[error(
        "`{0}` is no place for datasets: expected a folder of this machine, or an address without user and query such as s3://BUCKET/PREFIX"
    )]
    Address(String),
}

/// An address outside all places. Refuse it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{uri}` lies outside the places from which datasets are taken here; expected an address below one of: {places}; move the files there, or let the operator add their place with `ebb up --dataset-root`"
)]
pub struct Outside {
    /// The address.
    pub uri: String,
    /// What would be right.
    pub places: String,
}

impl DatasetRoot {
    /// A folder of this machine (a path, or a `file:` address), or the beginning of a store's addresses.
    pub fn parse(text: &str) -> Result<Self, RootError> {
        if !text.contains("://") {
            return Self::folder(Path::new(text));
        }
        let url = address(text).ok_or_else(|| RootError::Address(shown(text)))?;
        match url.to_file_path() {
            Ok(folder) if url.scheme() == "file" => Self::folder(&folder),
            _ if url.scheme() != "file" && url.host_str().is_some_and(|host| !host.is_empty()) => {
                Ok(Self(Place::Prefix(url)))
            }
            _ => Err(RootError::Address(shown(text))),
        }
    }

    /// A folder of this machine.
    pub fn folder(folder: &Path) -> Result<Self, RootError> {
        let unusable = |source| RootError::Folder { folder: folder.display().to_string(), source };
        let named = std::path::absolute(folder).map_err(unusable)?;
        let real = std::fs::canonicalize(&named).map_err(unusable)?;
        Ok(Self(Place::Folder { named, real }))
    }

    /// Whether this is the whole machine.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        matches!(&self.0, Place::Folder { real, .. } if real.parent().is_none())
    }
}

impl fmt::Display for DatasetRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Folder { named, .. } => write!(f, "{}", named.display()),
            Place::Prefix(url) => write!(f, "{url}"),
        }
    }
}

/// All places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatasetRoots(Vec<DatasetRoot>);

impl DatasetRoots {
    /// These, and no others.
    #[must_use]
    pub fn new(roots: Vec<DatasetRoot>) -> Self {
        Self(roots)
    }

    /// Whether files at this address (a path or a URL, of a file or of a folder) may be registered.
    pub fn admit(&self, uri: &str) -> Result<(), Outside> {
        let given = if uri.starts_with('/') { format!("file://{uri}") } else { uri.to_owned() };
        let inside = address(&given).is_some_and(|url| match url.to_file_path() {
            Ok(path) if url.scheme() == "file" => self.holds_path(&path),
            _ => self.0.iter().any(|root| matches!(&root.0, Place::Prefix(prefix) if is_below(&url, prefix))),
        });
        if inside { Ok(()) } else { Err(self.outside(uri)) }
    }

    /// Below a folder by its name, and really there.
    fn holds_path(&self, path: &Path) -> bool {
        let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let folders = || {
            self.0.iter().filter_map(|root| match &root.0 {
                Place::Folder { named, real } => Some((named, real)),
                Place::Prefix(_) => None,
            })
        };
        if !plain || !folders().any(|(named, real)| path.starts_with(named) || path.starts_with(real)) {
            return false;
        }
        // Of what does not exist, its nearest folder that does: a link to elsewhere says nothing about elsewhere.
        let there = path.ancestors().find_map(|part| std::fs::canonicalize(part).ok());
        there.is_some_and(|there| folders().any(|(_, real)| there.starts_with(real)))
    }

    fn outside(&self, uri: &str) -> Outside {
        let places: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        let places = if places.is_empty() { "none so far".to_owned() } else { places.join(", ") };
        Outside { uri: shown(uri), places }
    }
}

/// An address that means one thing: no user, query or fragment, no segment that climbs.
fn address(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let bare =
        url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    let climbs = segments(&url).any(|segment| {
        let lower = segment.to_ascii_lowercase();
        matches!(lower.replace("%2e", ".").as_str(), "." | "..")
            || ["%2f", "%5c", "%00"].iter().any(|code| lower.contains(code))
    });
    (bare && !climbs).then_some(url)
}

fn segments(url: &Url) -> impl Iterator<Item = &str> {
    url.path().split('/').filter(|segment| !segment.is_empty())
}

fn is_below(url: &Url, prefix: &Url) -> bool {
    let same_store =
        url.scheme() == prefix.scheme() && url.host_str() == prefix.host_str() && url.port() == prefix.port();
    let mut own = segments(url);
    same_store && segments(prefix).all(|segment| own.next() == Some(segment))
}

/// An address as it may stand in messages and journals: with a mark in the place of a user and a password.
fn shown(address: &str) -> String {
    let hidden = address.split_once("://").and_then(|(scheme, rest)| {
        let authority_len = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(authority_len);
        authority.rsplit_once('@').map(|(_, host)| format!("{scheme}://…@{host}{path}"))
    });
    hidden.unwrap_or_else(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    fn roots(texts: &[&str]) -> DatasetRoots {
        DatasetRoots::new(texts.iter().map(|text| DatasetRoot::parse(text).unwrap()).collect())
    }

    #[test]
    fn prefixes_are_whole_segments_of_one_store() {
        let roots = roots(&["s3://bucket/data", "gs://open"]);
        for inside in ["s3://bucket/data/a.parquet", "s3://bucket/data/", "s3://bucket/data", "gs://open/x/y"] {
            assert_eq!(roots.admit(inside), Ok(()), "{inside}");
        }
        for outside in [
            "s3://bucket/database/a",
            "s3://bucket/a",
            "s3://other/data/a",
            "s3://bucket:9/data/a",
            "s3://bucket/data/../a",
            "s3://bucket/data/%2e%2e/a",
            "s3://bucket/data/..%2Fa",
            "s3://key:secret@bucket/data/a",
            "s3://bucket/data/a?x",
            "http://bucket/data/a",
            "memory:///a",
            "/etc/passwd",
            "file:///etc/passwd",
            "data/a",
            "",
        ] {
            let refused = roots.admit(outside).unwrap_err();
            assert_eq!(refused.places, "s3://bucket/data, gs://open", "{outside}");
            assert!(!refused.to_string().contains("secret"), "{refused}");
            assert!(outside.contains("secret") || refused.uri == outside, "{refused}");
        }
    }

    #[test]
    fn folders_hold_what_is_really_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::create_dir_all(path("in/deep")).unwrap();
        std::fs::create_dir_all(path("out")).unwrap();
        for file in ["in/a", "in/deep/b", "out/c", "inside"] {
            std::fs::write(path(file), "").unwrap();
        }
        symlink(path("out"), path("in/away")).unwrap();
        symlink(path("in/deep"), path("in/near")).unwrap();
        symlink(path("in"), path("other-name")).unwrap();
        for root in [path("in"), path("other-name"), format!("file://{}", path("in"))] {
            let roots = roots(&[&root]);
            for inside in ["in/a", "in/deep/b", "in/deep/", "in/near/b", "in/nothing", "in"] {
                assert_eq!(roots.admit(&path(inside)), Ok(()), "{inside}");
                assert_eq!(roots.admit(&format!("file://{}", path(inside))), Ok(()), "{inside}");
            }
            // Whether it exists makes no difference.
            for outside in
                ["out/c", "out/nothing", "in/away/c", "in/away/nothing", "in/away/no/thing", "inside", "in/../out/c"]
            {
                let refused = roots.admit(&path(outside)).unwrap_err().to_string();
                assert!(refused.contains("lies outside") && refused.contains("--dataset-root"), "{outside}: {refused}");
            }
        }
    }

    #[test]
    fn places_are_folders_that_exist_or_addresses() {
        for wrong in ["/no/such/folder", "", "s3://", "s3://key:secret@bucket", "file://host/x", "s3://bucket?x=y"] {
            let refused = DatasetRoot::parse(wrong).unwrap_err().to_string();
            assert!(!refused.contains("secret"), "{refused}");
        }
        assert!(
            DatasetRoot::parse("/").unwrap().is_everything() && !DatasetRoot::parse("/tmp").unwrap().is_everything()
        );
        assert_eq!(DatasetRoots::default().admit("/a").unwrap_err().places, "none so far");
    }
}
