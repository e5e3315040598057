//! A submit that is made once, however often it has to be sent: every send carries the same idempotency key.

use crate::client::{Body, Client};
use crate::error::ClientError;
use gateway_api::{CommandState, CommandStatus, headers, paths};
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
    getrandom::fill(&mut bytes).map_err(ClientError::NoChance)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

impl Client {
    /// Submits a job spec and returns the job.
    pub async fn submit<T: DeserializeOwned>(&self, spec: &Body, key: &str) -> Result<T, ClientError> {
        let mut attempt = 1;
        loop {
            let sent =
                self.ask(Method::POST, paths::JOBS, Some(spec.clone()), &[(headers::IDEMPOTENCY_KEY, key)]).await;
            match sent {
                Err(failure) if failure.may_pass() && attempt < ATTEMPTS_MAX => attempt += 1,
                Err(ClientError::Undecided { id, command }) => return self.once_decided(id, command).await,
                answer => return answer,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The job of a submit that is recorded and waits for a controller.
    async fn once_decided<T: DeserializeOwned>(&self, id: String, command: String) -> Result<T, ClientError> {
        for _ in 0..LOOKS_MAX {
            let status: CommandStatus = self.get(&paths::with(paths::COMMAND, &command)).await?;
            match (status.status.known(), status.problem) {
                (Some(CommandState::Undecided), _) => tokio::time::sleep(PAUSE).await,
                (Some(CommandState::Refused), problem) => {
                    return Err(ClientError::Refused(Box::new(problem.unwrap_or_default())));
                }
                _ => return self.get(&paths::with(paths::JOB, &id)).await,
            }
        }
        Err(ClientError::Undecided { id, command })
    }
}
