//! `ebb events`: what happened, from the log. One line an event for people, one CloudEvent a line for programs.

use crate::args::EventsArgs;
use crate::failure::Failure;
use crate::output::{Output, line};
use crate::sentences::kind;
use crate::{find, wire};
use gateway_api::pages::BEGINNING;
use gateway_client::{Client, Events, Follower};
use serde_json::Value;

/// `ebb events [ID] [--follow] [--from CURSOR]`.
pub async fn events(client: &Client, output: Output, args: &EventsArgs) -> Result<(), Failure> {
    let events = match &args.id {
        Some(id) => Events::of_job(&find::job(client, id).await?),
        None => Events::all(),
    };
    if args.follow {
        // Of one job the story so far belongs to it; of all there may be years.
        let from = args.from.clone().or_else(|| args.id.as_ref().map(|_| BEGINNING.to_owned()));
        let mut follower = Follower::new(client.clone(), &events, from);
        loop {
            print(output, &follower.next().await?.body);
        }
    }
    Ok(client.each_event(&events, args.from.clone(), |event| print(output, event)).await?)
}

fn print(output: Output, event: &Value) {
    match output {
        Output::Json => line(event.to_string()),
        Output::Name => line(wire::words(&event["id"])),
        Output::Table => line(one_line(event)),
    }
}

/// Time, kind, subject and what else the event says.
#[must_use]
pub fn one_line(event: &Value) -> String {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    let kind = kind(event);
    let subject = text("subject");
    let details = event["data"].as_object().map(|data| {
        let told = |(_, value): &(&String, &Value)| value.as_str() != Some(subject);
        data.iter()
            .filter(told)
            .map(|(name, value)| format!("{name}: {}", wire::words(value)))
            .collect::<Vec<_>>()
            .join("  ")
    });
    format!("{}  {kind:24} {subject}  {}", text("time"), details.unwrap_or_default()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_line() {
        let event = json!({"time": "2026-01-01T00:00:00.000Z", "type": "dev.ebb.job.restarted.v1", "subject": "job-a", "data": {"job": "job-a", "from_step": 12}});
        assert_eq!(one_line(&event), "2026-01-01T00:00:00.000Z  job.restarted            job-a  from_step: 12");
    }
}
