//! Commands by id: what became of one that was answered with 202, because nobody had decided about it yet.

use super::{Id, NoQuery, Shared};
use crate::problem::{ApiError, Kind, Target, refused};
use axum::Json;
use axum::extract::State;
use events_schema::CommandId;
use gateway_api::{CommandState, CommandStatus};
use gateway_call::Answer;

/// `GET /v1/commands/{id}`.
pub async fn get(State(app): Shared, Id(command): Id<CommandId>, _: NoQuery) -> Json<CommandStatus> {
    let answer = app.read().answers.of_command(&command).cloned();
    let (status, problem) = match answer {
        None => (CommandState::Undecided, None),
        Some(Answer::Taken | Answer::Unremarked) => (CommandState::Done, None),
        Some(Answer::Refused { subject, refusal }) => {
            (CommandState::Refused, Some(refused(&refusal, Target::of_refused(&subject, &refusal))))
        }
        Some(Answer::SetAside(_)) => (
            CommandState::Refused,
            Some(ApiError::new(Kind::InputSetAside, "the controller could not take this command")),
        ),
    };
    Json(CommandStatus {
        command: command.to_string(),
        status: status.into(),
        problem: problem.map(|problem| problem.document()),
    })
}
