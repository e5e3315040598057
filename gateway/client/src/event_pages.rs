//! Every event up to now, page by page. Following what comes is `follow.rs`'s.

use crate::{Client, ClientError};
use serde_json::Value;

/// Events asked for per page.
const PAGE_LIMIT: usize = 500;

impl Client {
    /// Gives every event of `path` (`/v1/events`, a job's or a fleet's, with its filters) up to now, oldest first, from a cursor on.
    pub async fn each_event(
        &self,
        path: &str,
        mut from: Option<String>,
        mut take: impl FnMut(&Value),
    ) -> Result<(), ClientError> {
        loop {
            let after = from.as_deref().map(|c| format!("&from={c}")).unwrap_or_default();
            let joint = if path.contains('?') { '&' } else { '?' };
            let page: Value = self.get(&format!("{path}{joint}limit={PAGE_LIMIT}{after}")).await?;
            page["events"].as_array().into_iter().flatten().for_each(&mut take);
            let next = page["next_cursor"].as_str().map(str::to_owned);
            // A page may be empty: what was read for it held nothing of this subject. One that does not move ends the list, so that no
            // answer can keep us here for ever.
            if next.is_none() || next == from {
                return Ok(());
            }
            from = next;
        }
    }

    /// Every event of `path` up to now, oldest first.
    pub async fn all_events(&self, path: &str) -> Result<Vec<Value>, ClientError> {
        let mut events = Vec::new();
        self.each_event(path, None, |event| events.push(event.clone())).await?;
        Ok(events)
    }
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
        assert_eq!(client.all_events("/v1/jobs/job-a/events").await.unwrap(), [json!({"id": "a"})]);
        let asked = serving.await.unwrap();
        assert!(asked.len() == 3 && asked[1].ends_with("from=40-0") && asked[2].ends_with("from=50-0"), "{asked:?}");
    }

    #[tokio::test]
    async fn a_page_that_does_not_move_ends_the_list() {
        let page = json!({"events": [], "cursor": "40-0", "next_cursor": "40-0"});
        let (client, serving) = canned(vec![page.clone(), page]).await;
        assert_eq!(client.all_events("/v1/events").await.unwrap(), Vec::<Value>::new());
        assert_eq!(serving.await.unwrap().len(), 2);
    }
}
