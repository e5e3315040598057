//! A submit that is made once, however often it has to be sent: every send carries the same idempotency key.

use crate::answer::Answer;
use crate::client::{Body, Client};
use crate::error::ClientError;
use crate::filters::with_query;
use gateway_api::{CommandState, CommandStatus, DryRun, Job, headers, paths};
use reqwest::Method;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Times a submit is sent when nobody answers.
const ATTEMPTS_MAX: u32 = 5;
/// Pause between two of them: together about the time a service takes to restart.
const PAUSE: Duration = Duration::from_millis(500);
/// Looks at a submit that nobody has decided about, `PAUSE` apart: about a minute, beyond any take-over of the cell.
const LOOKS_MAX: u32 = 120;

/// A key that no other submit has.
pub fn fresh_key() -> Result<String, ClientError> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(ClientError::NoRandomness)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

impl Client {
    /// Submits a job spec and returns the job.
    pub async fn submit(&self, spec: &Body, key: &str) -> Result<Answer<Job>, ClientError> {
        let mut attempt = 1;
        loop {
            match self.submit_once(spec, Some(key)).await {
                Err(failure) if failure.may_pass() && attempt < ATTEMPTS_MAX => attempt += 1,
                Err(ClientError::Undecided { id, command }) => return self.once_decided(id, command).await,
                answer => return answer,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends a job spec a single time, whatever comes of it.
    pub async fn submit_once(&self, spec: &Body, key: Option<&str>) -> Result<Answer<Job>, ClientError> {
        self.send_spec(paths::JOBS, spec, key).await
    }

    /// What a submit would come to; nothing changes.
    pub async fn rehearse(&self, spec: &Body, key: Option<&str>) -> Result<Answer<DryRun>, ClientError> {
        let path = with_query(paths::JOBS.to_owned(), &[("dry_run", "true".to_owned())]);
        self.send_spec(&path, spec, key).await
    }

    async fn send_spec<T: DeserializeOwned>(
        &self,
        path: &str,
        spec: &Body,
        key: Option<&str>,
    ) -> Result<T, ClientError> {
        let headers: Vec<_> = key.map(|key| (headers::IDEMPOTENCY_KEY, key)).into_iter().collect();
        self.ask(Method::POST, path, Some(spec.clone()), &headers).await
    }

    /// The job of a submit that is recorded and waits for a controller. A look that fails as one may is a look: whoever was told of the
    /// failure instead would not know the command.
    async fn once_decided(&self, id: String, command: String) -> Result<Answer<Job>, ClientError> {
        for _ in 0..LOOKS_MAX {
            match self.look(&id, &command).await {
                Ok(Some(job)) => return Ok(job),
                Err(failure) if !failure.may_pass() => return Err(failure),
                Ok(None) | Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
        Err(ClientError::Undecided { id, command })
    }

    /// The job, if its submit is decided about.
    async fn look(&self, id: &str, command: &str) -> Result<Option<Answer<Job>>, ClientError> {
        let CommandStatus { status, problem, .. } = self.command(command).await?.into_typed();
        match (status.known(), problem) {
            (Some(CommandState::Undecided), _) => Ok(None),
            (Some(CommandState::Refused), problem) => Err(ClientError::Refused(Box::new(problem.unwrap_or_default()))),
            _ => self.job(id).await.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::canned::{answer, serve};
    use serde_json::json;

    #[tokio::test]
    async fn a_look_that_fails_does_not_end_a_submit_that_is_recorded() {
        let undecided = json!({"id": "job-a", "command": "cmd-1", "status": "undecided"}).to_string();
        let done = json!({"command": "cmd-1", "status": "done"}).to_string();
        let answers = vec![
            answer("202 Accepted", &undecided),
            answer("503 Service Unavailable", r#"{"title": "not ready"}"#),
            String::new(),
            answer("504 Gateway Time-out", "<html><title>504</title></html>"),
            answer("200 OK", &done),
            answer("200 OK", r#"{"id": "job-a"}"#),
        ];
        let (address, mut heads) = serve(answers, false).await;
        let client = Client::new(&address).unwrap();
        let job = client.submit(&Body::json(&json!({})), "key").await.unwrap();
        assert_eq!(job.as_it_came(), &json!({"id": "job-a"}));
        let mut asked = Vec::new();
        while let Ok(head) = heads.try_recv() {
            asked.push(head.split(' ').nth(1).unwrap().to_owned());
        }
        let command = "/v1/commands/cmd-1";
        assert_eq!(asked, ["/v1/jobs", command, command, command, command, "/v1/jobs/job-a"]);
    }
}
