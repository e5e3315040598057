//! From what a user types to what exists: ids may be cut to a unique beginning, and the nearest is named when nothing fits.

use crate::failure::Failure;
use gateway_api::Job;
use gateway_client::{Answer, Client, WantedJobs};

/// Similarity (Jaro-Winkler) above which a name is worth suggesting; the limit that clap uses.
const NEAREST_SIMILARITY_MIN: f64 = 0.7;
/// Jobs that are looked at for one abbreviation: more that begin alike are not told apart by any list.
const CANDIDATES_MAX: usize = 50;
const JOB_PREFIX: &str = "job-";
/// `job-` and 26 characters: nothing to complete.
const JOB_ID_LEN: usize = JOB_PREFIX.len() + 26;

/// The id of the job that `text` names: whole, or a beginning of it with or without `job-`.
pub async fn job(client: &Client, text: &str) -> Result<String, Failure> {
    if text.len() == JOB_ID_LEN
        && text.starts_with(JOB_PREFIX)
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    {
        return Ok(text.to_owned());
    }
    let full = if text.starts_with(JOB_PREFIX) { text.to_owned() } else { format!("{JOB_PREFIX}{text}") };
    let mut ids = Vec::new();
    // Anything else begins no id, and what it may have meant is looked for among the newest.
    if !text.is_empty() && full.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        ids = first_ids(client, WantedJobs { prefix: Some(full), ..WantedJobs::default() }).await?;
    }
    if ids.is_empty() {
        ids = first_ids(client, WantedJobs::default()).await?;
    }
    complete("job", text, &ids, JOB_PREFIX)
}

/// The newest such jobs' ids, at most a page of them.
async fn first_ids(client: &Client, wanted: WantedJobs) -> Result<Vec<String>, Failure> {
    let jobs = client.newest_jobs(&wanted, CANDIDATES_MAX).await?;
    Ok(jobs.into_iter().map(|job| job.into_typed().id).collect())
}

/// The one of `known` that `text` names or begins.
pub fn complete(kind: &'static str, text: &str, known: &[String], optional_prefix: &str) -> Result<String, Failure> {
    let full = if text.starts_with(optional_prefix) { text.to_owned() } else { format!("{optional_prefix}{text}") };
    if let Some(exact) = known.iter().find(|k| **k == full) {
        return Ok(exact.clone());
    }
    let candidates: Vec<String> = known.iter().filter(|k| !text.is_empty() && k.starts_with(&full)).cloned().collect();
    match candidates.as_slice() {
        [one] => Ok(one.clone()),
        [] => {
            // What all names begin with says nothing about which one is meant.
            let own = |name: &String| name.strip_prefix(optional_prefix).unwrap_or(name).to_owned();
            let nearest = nearest(&own(&full), &known.iter().map(own).collect::<Vec<_>>());
            let nearest = nearest.map(|name| format!("{optional_prefix}{name}"));
            Err(Failure::NotFound { kind, text: text.to_owned(), nearest })
        }
        _ => Err(Failure::Ambiguous { kind, text: text.to_owned(), candidates }),
    }
}

/// The known name most like `text`, if any is close. An abbreviation is compared with as much of each name.
#[must_use]
pub fn nearest(text: &str, known: &[String]) -> Option<String> {
    let length = text.chars().count().max(1);
    let likeness = |name: &String| strsim::jaro_winkler(text, &name.chars().take(length).collect::<String>());
    let best = known.iter().map(|name| (likeness(name), name)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= NEAREST_SIMILARITY_MIN).then(|| best.1.clone())
}

/// Jobs that are not over, newest first as the service lists them.
pub fn unfinished(jobs: &[Answer<Job>]) -> Vec<String> {
    jobs.iter().filter(|job| !job.is_over()).map(|job| job.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn known() -> Vec<String> {
        ["job-abcd", "job-abxy", "job-zzzz"].map(str::to_owned).to_vec()
    }

    #[test]
    fn unique_beginnings_are_enough() {
        assert_eq!(complete("job", "z", &known(), "job-").unwrap(), "job-zzzz");
        assert_eq!(complete("job", "job-abc", &known(), "job-").unwrap(), "job-abcd");
        assert!(
            matches!(complete("job", "ab", &known(), "job-"), Err(Failure::Ambiguous { candidates, .. }) if candidates.len() == 2)
        );
        assert!(matches!(complete("job", "", &known(), "job-"), Err(Failure::NotFound { .. })));
    }

    #[test]
    fn the_nearest_is_named() {
        let Err(Failure::NotFound { nearest, .. }) = complete("job", "job-zzzy", &known(), "job-") else {
            panic!("found")
        };
        assert_eq!(nearest.as_deref(), Some("job-zzzz"));
        assert_eq!(super::nearest("qqqq", &known()), None);
        let nothing_like_it = complete("job", "nope", &known(), "job-");
        assert!(
            matches!(nothing_like_it, Err(Failure::NotFound { nearest: None, .. })),
            "the prefix that all share is no likeness: {nothing_like_it:?}"
        );
    }
}
