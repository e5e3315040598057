//! Where ids are minted: unguessable ones from the operating system's generator, repeatable ones from an `Idempotency-Key`.
//!
//! A keyed job id depends on tenant and key alone, so it is the same after a restart, at another gateway and without any table.

use events_schema::{CommandId, Digest, JobId, TenantId};

/// Characters of an id after its prefix: 26 × 5 = 130 bits.
const ID_LEN: usize = 26;
/// Base 32 without padding, lower case (RFC 4648 §6).
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The system has no source of chance; nothing can be minted. Stop and repair the host.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gives no random numbers")]
pub struct NoRandomness;

/// The value of an `Idempotency-Key` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// What a key looks like.
    pub const RULE: &'static str = "1 to 255 printable ASCII characters, for example a UUID";
    const LEN_MAX: usize = 255;

    /// Parses a header value.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let legal = (1..=Self::LEN_MAX).contains(&value.len()) && value.iter().all(|c| (0x20..=0x7e).contains(c));
        legal.then(|| Self(String::from_utf8_lossy(value).into_owned()))
    }

    /// The id of the job that this key stands for.
    #[must_use]
    pub fn job(&self, tenant: &TenantId) -> JobId {
        id(&JobId::parse, "job-", &self.digest(tenant, "job", &[]).0)
    }

    /// The id of a submit under this key. `attempt` counts earlier submits that were refused, which do not bind the key.
    #[must_use]
    pub fn command(&self, tenant: &TenantId, body: &Digest, attempt: u32) -> CommandId {
        let mut rest = body.0.to_vec();
        rest.extend(attempt.to_le_bytes());
        id(&CommandId::parse, "cmd-", &self.digest(tenant, "command", &rest).0)
    }

    /// Lengths stand before the parts, so no two (tenant, key) pairs run together.
    fn digest(&self, tenant: &TenantId, purpose: &str, rest: &[u8]) -> Digest {
        let mut input = Vec::new();
        for part in [b"ebb idempotency v1", purpose.as_bytes(), tenant.as_str().as_bytes(), self.0.as_bytes(), rest] {
            input.extend((part.len() as u64).to_le_bytes());
            input.extend(part);
        }
        Digest::of(&input)
    }
}

/// An id that nobody can guess.
pub fn random_job() -> Result<JobId, NoRandomness> {
    Ok(id(&JobId::parse, "job-", &random_bytes()?))
}

/// A command id that no other command has.
pub fn random_command() -> Result<CommandId, NoRandomness> {
    Ok(id(&CommandId::parse, "cmd-", &random_bytes()?))
}

/// Random characters for people to quote; all `a` where the system has no chance left, since nothing depends on it.
#[must_use]
pub fn random_text(len: usize) -> String {
    base32(&random_bytes().unwrap_or_default(), len)
}

fn random_bytes() -> Result<[u8; 32], NoRandomness> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

fn id<T, E: std::fmt::Debug>(parse: &dyn Fn(&str) -> Result<T, E>, prefix: &str, bytes: &[u8; 32]) -> T {
    match parse(&format!("{prefix}{}", base32(bytes, ID_LEN))) {
        Ok(id) => id,
        Err(error) => unreachable!("a prefix and base 32 always make an id: {error:?}"),
    }
}

/// The first `len` base-32 characters of `bytes`, five bits each, highest bit first; at most 51 for 32 bytes.
fn base32(bytes: &[u8; 32], len: usize) -> String {
    let bit = |n: usize| bytes[n / 8] >> (7 - n % 8) & 1;
    let character =
        |i: usize| ALPHABET[(0..5).fold(0usize, |value, k| value << 1 | usize::from(bit(i * 5 + k)))] as char;
    (0..len.min(51)).map(character).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn base32_agrees_with_the_test_vectors_of_rfc_4648() {
        let mut bytes = [0; 32];
        bytes[..6].copy_from_slice(b"foobar");
        assert_eq!(base32(&bytes, 9), "mzxw6ytbo");
    }

    #[test]
    fn a_key_names_one_job_per_tenant() {
        let key = |text: &str| IdempotencyKey::parse(text.as_bytes()).unwrap();
        let (a, b) = (TenantId::parse("a").unwrap(), TenantId::parse("ab").unwrap());
        assert_eq!(key("k").job(&a), key("k").job(&a));
        assert_ne!(key("bk").job(&a), key("k").job(&b));
        let body = Digest::of(b"body");
        assert_ne!(key("k").command(&a, &body, 0), key("k").command(&a, &body, 1));
        assert_ne!(key("k").command(&a, &body, 0), key("k").command(&a, &Digest::of(b"other"), 0));
        // Stored jobs are found again by this very id: changing the derivation would break every key in use.
        assert_eq!(key("k").job(&a).as_str().len(), 30);
    }

    #[test]
    fn keys_are_printable_ascii() {
        for bad in [&b""[..], &[b'k'; 256], b"tab\t", "é".as_bytes(), b"\x7f"] {
            assert!(IdempotencyKey::parse(bad).is_none(), "{bad:?}");
        }
        assert!(IdempotencyKey::parse(&[b'k'; 255]).is_some());
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(random_job().unwrap(), random_job().unwrap());
    }
}
