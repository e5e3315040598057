//! The door: which requests come in at all. A browser sends requests for any page that is open in it, so a page of another site, or one
//! whose host name was pointed at this address, could otherwise use a service that serves everybody who reaches it.
//!
//! Two questions, answered from a request's head alone: is `Host` a name of this service, and does no page of another origin ask. Who the
//! sender is, is not asked here, so the door is for what asks for no token: a page has none.

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use url::Host;

/// Where a browser says which kind of page asks; pages cannot set it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A host name or address by which a service is asked for, beside loopback and where it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(Host<String>);

impl HostName {
    /// As `Host` carries it, without a port.
    fn parse_host(text: &str) -> Option<Self> {
        let host = Host::parse(text.strip_suffix('.').unwrap_or(text)).ok()?;
        Some(Self(host))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no host name. Refuse it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no host name: expected a name or an address without scheme, port or path, for example ebb.example.org"
)]
pub struct HostNameError(String);

impl FromStr for HostName {
    type Err = HostNameError;
    fn from_str(text: &str) -> Result<Self, HostNameError> {
        Self::parse_host(text).ok_or_else(|| HostNameError(text.to_owned()))
    }
}

/// What the door knows of its own service.
#[derive(Debug, Clone)]
pub struct Door {
    listen: IpAddr,
    names: Vec<HostName>,
}

impl Door {
    /// Of a service that listens at an address and is called by these names too.
    #[must_use]
    pub fn new(listen: IpAddr, names: Vec<HostName>) -> Self {
        Self { listen, names }
    }

    /// Whether a request may come in.
    pub fn check(&self, head: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
        let host = self.own_host(head, uri)?;
        ensure_own_page(head, &host)
    }

    /// The authority that is asked for, if it is this service's.
    fn own_host(&self, head: &HeaderMap, uri: &Uri) -> Result<Authority, Refusal> {
        let mut values = head.get_all(header::HOST).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return Err(Refusal::NoOneHost) };
        let text = shown(value);
        let asked = text.parse::<Authority>().ok().filter(|asked| self.is_own(asked));
        let also_asked = uri.authority().is_none_or(|authority| self.is_own(authority));
        asked
            .filter(|_| also_asked)
            .ok_or_else(|| Refusal::UnknownHost { host: uri.authority().map_or(text, Authority::to_string) })
    }

    fn is_own(&self, authority: &Authority) -> bool {
        let Some(host) = HostName::parse_host(authority.host()).filter(|_| !authority.as_str().contains('@')) else {
            return false;
        };
        let own = match &host.0 {
            Host::Domain(name) => name == "localhost" || name.ends_with(".localhost"),
            Host::Ipv4(address) => self.is_own_address(IpAddr::V4(*address)),
            Host::Ipv6(address) => self.is_own_address(IpAddr::V6(*address)),
        };
        own || self.names.contains(&host)
    }

    /// Names can be pointed here by whoever owns them, addresses cannot: a page at an address of ours came from us.
    fn is_own_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || address == self.listen || self.listen.is_unspecified()
    }
}

/// Refuses what a page of another origin asks for. Programs send neither header.
fn ensure_own_page(head: &HeaderMap, host: &Authority) -> Result<(), Refusal> {
    for origin in head.get_all(header::ORIGIN) {
        let origin = shown(origin);
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str())) {
            return Err(Refusal::ForeignOrigin { field: "Origin", value: origin });
        }
    }
    for site in head.get_all(SEC_FETCH_SITE) {
        let site = shown(site);
        // `none` is a person who typed the address.
        if site != "same-origin" && site != "none" {
            return Err(Refusal::ForeignOrigin { field: "Sec-Fetch-Site", value: site });
        }
    }
    Ok(())
}

fn shown(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Why a request does not come in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not say whom it asks.
    #[error("the header `Host` is missing or repeated: expected one that stands once")]
    NoOneHost,
    /// It asks for somebody else.
    #[error(
        "this service is not called `{host}`; ask for it as localhost or by its address, or let its operator start it with `--allow-host NAME`"
    )]
    UnknownHost {
        /// Who is asked for.
        host: String,
    },
    /// A page asks that is not of this service.
    #[error(
        "a web page of another origin asks for this (`{field}: {value}`), and none may use this service; ask from a program, which sends no such header"
    )]
    ForeignOrigin {
        /// The header that says so.
        field: &'static str,
        /// What it says.
        value: String,
    },
}

/// A problem of its own, for services that have no other way to say one.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, slug) = match self {
            Self::NoOneHost => (StatusCode::BAD_REQUEST, "invalid-header"),
            Self::UnknownHost { .. } => (StatusCode::MISDIRECTED_REQUEST, "unknown-host"),
            Self::ForeignOrigin { .. } => (StatusCode::FORBIDDEN, "foreign-origin"),
        };
        let body = serde_json::json!({
            "type": format!("https://ebb.dev/problems/{slug}"),
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": self.to_string(),
        });
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
    }
}

/// Lets a request in, or says why not.
pub async fn guard(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    match door.check(request.headers(), request.uri()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn door(listen: &str, names: &[&str]) -> Door {
        Door::new(listen.parse().unwrap(), names.iter().map(|name| name.parse().unwrap()).collect())
    }

    fn said(door: &Door, head: &[(&'static str, &str)], uri: &str) -> Option<StatusCode> {
        let mut headers = HeaderMap::new();
        for (name, value) in head {
            headers.append(*name, value.parse().unwrap());
        }
        door.check(&headers, &uri.parse().unwrap()).err().map(|refusal| refusal.into_response().status())
    }

    #[test]
    fn only_names_of_the_service_are_answered() {
        let local = door("127.0.0.1", &["Ebb.Example.org", "10.0.0.9"]);
        for own in [
            "localhost:7878",
            "LOCALHOST",
            "localhost.",
            "a.localhost:1",
            "127.0.0.1:7878",
            "127.9.9.9",
            "[::1]:7878",
            "ebb.example.org:80",
            "10.0.0.9",
        ] {
            assert_eq!(said(&local, &[("host", own)], "/v1/jobs"), None, "{own}");
        }
        for other in [
            "rebound.example:7878",
            "localhost.evil.example",
            "10.0.0.1",
            "user@localhost",
            "a b",
            "",
            "[::2]",
            "localhost/x",
        ] {
            assert_eq!(
                said(&local, &[("host", other)], "/v1/jobs"),
                Some(StatusCode::MISDIRECTED_REQUEST),
                "{other:?}"
            );
        }
        // By address anybody may ask who listens at all of them; by name still not.
        let open = door("0.0.0.0", &[]);
        assert_eq!(said(&open, &[("host", "10.0.0.1:7878")], "/"), None);
        assert_eq!(said(&open, &[("host", "rebound.example")], "/"), Some(StatusCode::MISDIRECTED_REQUEST));
    }

    #[test]
    fn a_host_stands_once_and_agrees_with_the_request_line() {
        let local = door("127.0.0.1", &[]);
        assert_eq!(said(&local, &[], "/"), Some(StatusCode::BAD_REQUEST));
        assert_eq!(said(&local, &[("host", "localhost"), ("host", "localhost")], "/"), Some(StatusCode::BAD_REQUEST));
        assert_eq!(
            said(&local, &[("host", "localhost")], "http://rebound.example/v1/jobs"),
            Some(StatusCode::MISDIRECTED_REQUEST)
        );
        assert_eq!(said(&local, &[("host", "localhost")], "http://localhost/v1/jobs"), None);
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let local = door("127.0.0.1", &[]);
        let asked = |name: &'static str, value: &str| said(&local, &[("host", "localhost:7878"), (name, value)], "/");
        for own in ["http://localhost:7878", "https://LocalHost:7878"] {
            assert_eq!(asked("origin", own), None, "{own}");
        }
        for foreign in [
            "http://evil.example",
            "http://localhost:3000",
            "http://localhost",
            "null",
            "",
            "file://",
            "localhost:7878",
        ] {
            assert_eq!(asked("origin", foreign), Some(StatusCode::FORBIDDEN), "{foreign:?}");
        }
        assert_eq!((asked("sec-fetch-site", "same-origin"), asked("sec-fetch-site", "none")), (None, None));
        // Another port of the same host is the same site and another origin.
        for foreign in ["cross-site", "same-site", "new-value"] {
            assert_eq!(asked("sec-fetch-site", foreign), Some(StatusCode::FORBIDDEN), "{foreign}");
        }
    }

    #[test]
    fn host_names_have_neither_scheme_nor_port() {
        for wrong in ["", "http://a.example", "a.example:80", "a/b", "a b"] {
            assert!(
                wrong.parse::<HostName>().unwrap_err().to_string().contains("for example ebb.example.org"),
                "{wrong:?}"
            );
        }
        assert_eq!("A.Example".parse::<HostName>().unwrap().to_string(), "a.example");
    }
}
