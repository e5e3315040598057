//! The bucket's rule that gives up abandoned uploads. A bucket has one document of rules for all its users, replaced as a whole: what is
//! Ebb's is one rule, and the others are sent back as they were read, which is all that Amazon knows of them. `plan` is pure; [`setup`] reads,
//! writes and reads again.

use crate::client::Bucket;
use crate::fault::Fault;
use crate::uploads::AGE_STANDARD;
use aws_sdk_s3::types::{
    AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, ExpirationStatus, LifecycleRule, LifecycleRuleFilter,
    TransitionDefaultMinimumObjectSize,
};
use serde::Serialize;

/// Days after which the server gives an upload up: the age of `ebb store uploads`, and for the same reason.
pub const DAYS: i32 = (AGE_STANDARD.as_secs() / (24 * 3_600)) as i32;
/// What a server says of a bucket without rules. Only then may a document of ours be the whole.
const NO_RULES: &str = "NoSuchLifecycleConfiguration";
/// Longest name of a rule that S3 takes.
const NAME_LEN_MAX: usize = 255;

/// What was done about the rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// The rule's name.
    pub rule: String,
    /// Which keys it is about; empty for all of the bucket.
    pub prefix: String,
    /// After how many days.
    pub days: i32,
    /// Rules of others, which stay.
    pub other_rules: usize,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of the rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Outcome {
    /// Nothing to do: this rule does it already.
    Present {
        /// Its name; not always ours.
        by: String,
    },
    /// The bucket has it now.
    Added,
    /// A rule of its name said something else and now says this.
    Replaced,
    /// It would be added.
    WouldAdd,
    /// A rule of its name would be replaced.
    WouldReplace,
    /// The server does not take it.
    Refused {
        /// What it said.
        why: String,
    },
}

/// Why nothing is known about the rule.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a field without a comment is what its name and type say")]
pub enum SetupError {
    /// As the fault says.
    #[error("the bucket's life-cycle rules cannot be {doing}")]
    Fault {
        /// `read` or `written`.
        doing: &'static str,
        #[source]
        fault: Fault,
    },
    /// What the server kept is not what it was given. A person has to compare.
    #[error(
        "the bucket's life-cycle rules are not what was written: expected {expected} with `{rule}`, found {found}; another program may have changed them at the same moment, so look at them and run this again"
    )]
    Differs {
        /// Our rule.
        rule: String,
        /// How many were written.
        expected: usize,
        /// How many are there.
        found: usize,
    },
}

/// What the bucket's rules are to become.
#[derive(Debug, Clone, PartialEq)]
enum Plan {
    Nothing { by: String },
    Add(Vec<LifecycleRule>),
    Replace(Vec<LifecycleRule>),
}

struct Rules {
    rules: Vec<LifecycleRule>,
    /// A setting of the whole document that has to be sent back with it.
    transition_minimum: Option<TransitionDefaultMinimumObjectSize>,
}

/// Sees to it that the bucket gives up abandoned uploads below the address. Twice is as good as once.
pub async fn setup(bucket: &Bucket, dry_run: bool) -> Result<Setup, SetupError> {
    let prefix = bucket.address.key_prefix();
    let rule = rule_name(&prefix);
    let before = match read(bucket).await {
        Err(SetupError::Fault { fault: fault @ Fault::Unsupported { .. }, .. }) => {
            let outcome = Outcome::Refused { why: fault.to_string() };
            return Ok(Setup { rule, prefix, days: DAYS, other_rules: 0, outcome });
        }
        before => before?,
    };
    let ours = |of: &LifecycleRule| of.id() == Some(&rule);
    let other_rules = before.rules.iter().filter(|rule| !ours(rule)).count();
    let told = |outcome| Setup { rule: rule.clone(), prefix: prefix.clone(), days: DAYS, other_rules, outcome };
    let (rules, done) = match plan(&before.rules, &prefix) {
        Plan::Nothing { by } => return Ok(told(Outcome::Present { by })),
        Plan::Add(_) if dry_run => return Ok(told(Outcome::WouldAdd)),
        Plan::Replace(_) if dry_run => return Ok(told(Outcome::WouldReplace)),
        Plan::Add(rules) => (rules, Outcome::Added),
        Plan::Replace(rules) => (rules, Outcome::Replaced),
    };
    match write(bucket, rules.clone(), before.transition_minimum).await {
        Ok(()) => {}
        Err(fault @ (Fault::Unsupported { .. } | Fault::Other { status: 400, .. })) => {
            return Ok(told(Outcome::Refused { why: fault.to_string() }));
        }
        Err(fault) => return Err(SetupError::Fault { doing: "written", fault }),
    }
    let after = read(bucket).await?.rules;
    if rules.iter().all(|rule| after.contains(rule)) && after.len() == rules.len() {
        return Ok(told(done));
    }
    Err(SetupError::Differs { rule, expected: rules.len(), found: after.len() })
}

/// The rule that gives up abandoned uploads below the address, if there is one.
pub(crate) async fn present(bucket: &Bucket) -> Result<Option<String>, Fault> {
    let rules = match read(bucket).await {
        Ok(rules) => rules.rules,
        Err(SetupError::Fault { fault, .. }) => return Err(fault),
        Err(SetupError::Differs { .. }) => return Ok(None),
    };
    Ok(match plan(&rules, &bucket.address.key_prefix()) {
        Plan::Nothing { by } => Some(by),
        Plan::Add(_) | Plan::Replace(_) => None,
    })
}

async fn read(bucket: &Bucket) -> Result<Rules, SetupError> {
    let answer = bucket.client.get_bucket_lifecycle_configuration().bucket(bucket.name()).send().await;
    match answer.map_err(|e| Fault::of(&e)) {
        Ok(answer) => Ok(Rules {
            rules: answer.rules().to_vec(),
            transition_minimum: answer.transition_default_minimum_object_size().cloned(),
        }),
        Err(Fault::Missing { code }) if code == NO_RULES => Ok(Rules { rules: Vec::new(), transition_minimum: None }),
        // Of somebody between here and the server, or of a bucket that went away: not the word that there is nothing to lose.
        Err(Fault::Missing { code }) => {
            Err(SetupError::Fault { doing: "read", fault: Fault::Other { status: 404, code } })
        }
        Err(fault) => Err(SetupError::Fault { doing: "read", fault }),
    }
}

async fn write(
    bucket: &Bucket,
    rules: Vec<LifecycleRule>,
    transition_minimum: Option<TransitionDefaultMinimumObjectSize>,
) -> Result<(), Fault> {
    let malformed = |_| Fault::Other { status: 0, code: "rules that cannot be sent".to_owned() };
    let document = BucketLifecycleConfiguration::builder().set_rules(Some(rules)).build().map_err(malformed)?;
    let put = bucket.client.put_bucket_lifecycle_configuration().bucket(bucket.name());
    let put = put.lifecycle_configuration(document).set_transition_default_minimum_object_size(transition_minimum);
    put.send().await.map(drop).map_err(|e| Fault::of(&e))
}

/// Two installations in one bucket have two rules.
fn rule_name(prefix: &str) -> String {
    let mut name = format!("ebb-abandoned-uploads {prefix}").trim_end_matches(['/', ' ']).to_owned();
    while name.len() > NAME_LEN_MAX {
        name.pop();
    }
    name
}

fn rule_for(prefix: &str) -> Option<LifecycleRule> {
    LifecycleRule::builder()
        .id(rule_name(prefix))
        .status(ExpirationStatus::Enabled)
        .filter(LifecycleRuleFilter::builder().prefix(prefix).build())
        .abort_incomplete_multipart_upload(
            AbortIncompleteMultipartUpload::builder().days_after_initiation(DAYS).build(),
        )
        .build()
        .ok()
}

fn plan(rules: &[LifecycleRule], prefix: &str) -> Plan {
    let (name, wanted) = (rule_name(prefix), rule_for(prefix));
    if let Some(covering) = rules.iter().find(|rule| covers(rule, prefix)) {
        return Plan::Nothing { by: covering.id().unwrap_or("a rule without a name").to_owned() };
    }
    let others = rules.iter().filter(|rule| rule.id() != Some(&name)).cloned();
    let all: Vec<LifecycleRule> = others.chain(wanted).collect();
    if all.len() == rules.len() { Plan::Replace(all) } else { Plan::Add(all) }
}

/// Whether this rule gives up all uploads below the prefix at least as early as ours.
#[expect(deprecated, reason = "rules of long ago have their prefix outside the filter")]
fn covers(rule: &LifecycleRule, prefix: &str) -> bool {
    let days = rule.abort_incomplete_multipart_upload().and_then(|abort| abort.days_after_initiation());
    let of_all = |part: Option<&str>| prefix.starts_with(part.unwrap_or_default());
    let filtered = rule.filter().is_none_or(|filter| {
        let narrowed = filter.tag().is_some()
            || filter.object_size_greater_than().is_some()
            || filter.object_size_less_than().is_some()
            || filter.and().is_some();
        !narrowed && of_all(filter.prefix())
    });
    *rule.status() == ExpirationStatus::Enabled
        && days.is_some_and(|days| (1..=DAYS).contains(&days))
        && of_all(rule.prefix())
        && filtered
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use aws_sdk_s3::types::LifecycleExpiration;

    fn other(id: &str) -> LifecycleRule {
        LifecycleRule::builder()
            .id(id)
            .status(ExpirationStatus::Enabled)
            .filter(LifecycleRuleFilter::builder().prefix("logs/").build())
            .expiration(LifecycleExpiration::builder().days(30).build())
            .build()
            .unwrap()
    }

    fn aborting(id: &str, prefix: &str, days: i32) -> LifecycleRule {
        let abort = AbortIncompleteMultipartUpload::builder().days_after_initiation(days).build();
        let mut rule = other(id);
        rule.expiration = None;
        rule.filter = Some(LifecycleRuleFilter::builder().prefix(prefix).build());
        rule.abort_incomplete_multipart_upload = Some(abort);
        rule
    }

    #[test]
    fn the_rule_is_added_once_and_others_stay() {
        let before = vec![other("a"), aborting("for others", "tmp/", 1)];
        let Plan::Add(rules) = plan(&before, "ebb/") else { panic!("not added") };
        assert_eq!(rules[..2], before[..]);
        assert_eq!(plan(&rules, "ebb/"), Plan::Nothing { by: rule_name("ebb/") });
        // Another installation in the same bucket, whose name begins the same.
        assert!(matches!(plan(&rules, "ebb-2/"), Plan::Add(rules) if rules.len() == 4));
    }

    #[test]
    fn a_rule_of_our_name_that_says_something_else_is_replaced_in_place() {
        let before = vec![aborting(&rule_name("ebb/"), "ebb/", 90), other("a")];
        let Plan::Replace(rules) = plan(&before, "ebb/") else { panic!("not replaced") };
        assert!(rules.len() == 2 && rules.contains(&before[1]) && rules.contains(&rule_for("ebb/").unwrap()));
    }

    #[test]
    fn a_rule_of_others_that_does_as_much_is_enough() {
        let mut disabled = aborting("all", "", 2);
        assert_eq!(plan(&[disabled.clone()], "ebb/"), Plan::Nothing { by: "all".to_owned() });
        disabled.status = ExpirationStatus::Disabled;
        assert!(matches!(plan(&[disabled], "ebb/"), Plan::Add(_)));
        assert!(matches!(plan(&[aborting("late", "", 30)], "ebb/"), Plan::Add(_)));
        assert!(matches!(plan(&[aborting("deeper", "ebb/jobs/", 1)], "ebb/"), Plan::Add(_)));
    }
}
