//! `ebb events`: what happened, from the log. One line an event for people, one CloudEvent a line for programs.

use crate::args::EventsArgs;
use crate::failure::Failure;
use crate::output::{Output, line, listed, names};
use crate::sentences::kind;
use crate::{find, wire};
use gateway_api::pages::BEGINNING;
use gateway_client::{Client, Follower};
use serde_json::Value;

/// Events asked for per page.
const PAGE_LIMIT: usize = 500;

/// `ebb events [ID] [--follow] [--from CURSOR]`.
pub async fn events(client: &Client, output: Output, args: &EventsArgs) -> Result<(), Failure> {
    let path = match &args.id {
        Some(id) => format!("/v1/jobs/{}/events", find::job(client, id).await?),
        None => "/v1/events".to_owned(),
    };
    if args.follow {
        // Of one job the story so far belongs to it; of all there may be years.
        let from = args.from.clone().or_else(|| args.id.as_ref().map(|_| BEGINNING.to_owned()));
        let mut follower = Follower::new(client.clone(), &path, from);
        loop {
            print(output, &follower.next().await?.body);
        }
    }
    page_by_page(client, &path, args.from.clone(), |event| print(output, event)).await
}

/// Gives every event of `path` up to now, oldest first.
pub async fn each(client: &Client, path: &str, take: impl FnMut(&Value)) -> Result<(), Failure> {
    page_by_page(client, path, None, take).await
}

/// Every event of `path` (`/v1/events` or a job's) up to now, oldest first.
pub async fn all(client: &Client, path: &str) -> Result<Vec<Value>, Failure> {
    let mut events = Vec::new();
    page_by_page(client, path, None, |event| events.push(event.clone())).await?;
    Ok(events)
}

async fn page_by_page(
    client: &Client,
    path: &str,
    mut from: Option<String>,
    mut take: impl FnMut(&Value),
) -> Result<(), Failure> {
    loop {
        let after = from.as_deref().map(|c| format!("&from={c}")).unwrap_or_default();
        let joint = if path.contains('?') { '&' } else { '?' };
        let page: Value = client.get(&format!("{path}{joint}limit={PAGE_LIMIT}{after}")).await?;
        listed(&page["events"]).iter().for_each(&mut take);
        let next = page["next_cursor"].as_str().map(str::to_owned);
        // A page may be empty: what was read for it held nothing of this subject. One that does not move ends the list, so that no
        // answer can keep us here for ever.
        if next.is_none() || next == from {
            return Ok(());
        }
        from = next;
    }
}

fn print(output: Output, event: &Value) {
    match output {
        Output::Json => line(event.to_string()),
        Output::Name => names([event], "id"),
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
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Answers so many requests, one after the other, with these documents; what was asked for.
    async fn canned(answers: Vec<Value>) -> (Client, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let serving = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                asked.push(String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned());
                let body = answer.to_string();
                let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
            asked
        });
        (client, serving)
    }

    #[tokio::test]
    async fn an_empty_page_is_not_the_end() {
        let (client, serving) = canned(vec![
            json!({"events": [], "cursor": "40-0", "next_cursor": "40-0"}),
            json!({"events": [{"id": "a"}], "cursor": "50-0", "next_cursor": "50-0"}),
            json!({"events": [], "cursor": "50-0"}),
        ])
        .await;
        assert_eq!(all(&client, "/v1/jobs/job-a/events").await.unwrap(), [json!({"id": "a"})]);
        let asked = serving.await.unwrap();
        assert!(asked.len() == 3 && asked[1].ends_with("from=40-0") && asked[2].ends_with("from=50-0"), "{asked:?}");
    }

    #[tokio::test]
    async fn a_page_that_does_not_move_ends_the_list() {
        let page = json!({"events": [], "cursor": "40-0", "next_cursor": "40-0"});
        let (client, serving) = canned(vec![page.clone(), page]).await;
        assert_eq!(all(&client, "/v1/events").await.unwrap(), Vec::<Value>::new());
        assert_eq!(serving.await.unwrap().len(), 2);
    }

    #[test]
    fn an_event_is_one_line() {
        let event = json!({"time": "2026-01-01T00:00:00.000Z", "type": "dev.ebb.job.restarted.v1", "subject": "job-a", "data": {"job": "job-a", "from_step": 12}});
        assert_eq!(one_line(&event), "2026-01-01T00:00:00.000Z  job.restarted            job-a  from_step: 12");
    }
}
