//! Free text of the log, as the public may read it. A reason is said by whoever met the trouble (the store, another process, the user's own code), so it
//! may name objects, addresses and tokens; these are left out here, and the rest stays as it was said. The whole sentence is in the log, and on the record of the job that it is about. A bare name of a host
//! cannot be told from any other word and stays.

use std::net::{IpAddr, SocketAddr};

/// So many hexadecimal digits in a row are a token or a digest.
const TOKEN_DIGITS_MIN: usize = 32;

/// Instead of the key of an object.
const OBJECT: &str = "(object)";
/// Instead of an address.
const ADDRESS: &str = "(address)";
/// Instead of a token.
const TOKEN: &str = "(token)";

/// The text without keys of objects, addresses and tokens.
pub(crate) fn redacted(text: &str) -> String {
    let mut public = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let of_word = !ends_word(first);
        let end = rest.find(|c| ends_word(c) == of_word).unwrap_or(rest.len());
        let (piece, behind) = rest.split_at(end);
        public.push_str(if of_word { hidden(piece).unwrap_or(piece) } else { piece });
        rest = behind;
    }
    public
}

fn ends_word(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | ';' | '(' | ')' | '<' | '>' | '{' | '}' | '=' | '|' | '@')
}

/// What stands in public instead of a word; none if the word may be read.
fn hidden(word: &str) -> Option<&'static str> {
    if word.contains("://") || is_address(word) {
        Some(ADDRESS)
    } else if is_key(word) {
        Some(OBJECT)
    } else {
        has_token(word).then_some(TOKEN)
    }
}

/// Whether it is of Ebb's objects (`storage/keys`), also below a folder or a bucket.
fn is_key(word: &str) -> bool {
    let of_job = word.find("jobs/").map(|at| &word[at..]);
    let of_job = of_job
        .is_some_and(|key| ["/checkpoints/", "/model.safetensors", "/logs/e"].iter().any(|part| key.contains(part)));
    of_job || word.starts_with("datasets/") || word.contains("/metadata-")
}

fn is_address(word: &str) -> bool {
    let word = word.trim_end_matches(['.', ':', '!', '?']);
    let inner = word.trim_start_matches('[').trim_end_matches(']');
    // `a::b` is a name in a program.
    let has_digit = word.bytes().any(|c| c.is_ascii_digit());
    let ip = |text: &str| has_digit && (text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok());
    // `tcp:10.0.3.7:7900`
    let behind_a_colon = word.match_indices(':').any(|(at, _)| ip(&word[at + 1..]));
    ip(word) || ip(inner) || behind_a_colon || word.split(['/', '-']).any(ip) || is_host_and_port(word)
}

/// `localhost:7878`, `node-3.cluster:7900`; not `train.py:1200`, a line of a program.
fn is_host_and_port(word: &str) -> bool {
    let Some((host, port)) = word.rsplit_once(':') else { return false };
    let port = port.split('/').next().unwrap_or_default();
    let is_port = (2..=5).contains(&port.len()) && port.bytes().all(|digit| digit.is_ascii_digit());
    let named = host.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-'));
    let of_program = ["py", "rs", "c", "cc", "cpp", "cu", "h"]
        .iter()
        .any(|end| host.rsplit_once('.').is_some_and(|(_, e)| e == *end));
    is_port && (host == "localhost" || named && host.contains('.') && !of_program)
}

fn has_token(word: &str) -> bool {
    word.split(|c: char| !c.is_ascii_hexdigit()).any(|digits| digits.len() >= TOKEN_DIGITS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_addresses_and_tokens_are_left_out() {
        let token = "0a".repeat(16);
        let key = format!("jobs/job-a/checkpoints/g00000000000000000003-s00000000000000001200-w{token}/manifest.json");
        for (said, public) in [
            (format!("checkpoint object `{key}` is missing"), "checkpoint object `(object)` is missing"),
            (format!("s3: GET s3://models/{key}: 404"), "s3: GET (address) 404"),
            (format!("/var/lib/ebb/store/{key}: no such file"), "(object) no such file"),
            ("no answer from 10.0.3.7:7900.".to_owned(), "no answer from (address)"),
            ("no answer from [fe80::1]:7900, or ::1".to_owned(), "no answer from (address), or (address)"),
            ("kafka-2.example.org:9092/1: down".to_owned(), "(address) down"),
            ("tcp:10.0.3.7:7900 is down".to_owned(), "(address) is down"),
            ("error for url (http://127.0.0.1:9000/b)".to_owned(), "error for url ((address))"),
            (format!("token={token}{token} refused"), "token=(token) refused"),
            (format!("writer w{token}"), "writer (token)"),
        ] {
            assert_eq!(redacted(&said), public, "{said}");
        }
    }

    #[test]
    fn what_the_users_code_says_stays() {
        let trace = "Traceback (most recent call last):\n  File \"/srv/code/train.py\", line 12, in step\n    loss = self.net(x[0:10])\nRuntimeError: \
                     mat1 and mat2 shapes cannot be multiplied (8x64 and 32x10): see train.py:1200, a::b, torch 2.15.0+cpu, 12:30:05";
        assert_eq!(redacted(trace), trace);
    }
}
