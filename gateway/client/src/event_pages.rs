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
    use crate::canned::{answer, serve};
    use serde_json::json;

    #[tokio::test]
    async fn an_empty_page_is_not_the_end() {
        let pages = [
            json!({"events": [], "cursor": "40-0", "next_cursor": "40-0"}),
            json!({"events": [{"id": "a"}], "cursor": "50-0", "next_cursor": "50-0"}),
            json!({"events": [], "cursor": "50-0"}),
        ];
        let (address, mut heads) = serve(pages.map(|page| answer("200 OK", &page.to_string())).into(), false).await;
        let client = Client::new(&address).unwrap();
        assert_eq!(client.all_events("/v1/jobs/job-a/events").await.unwrap(), [json!({"id": "a"})]);
        for from in ["limit=500 ", "from=40-0 ", "from=50-0 "] {
            let head = heads.recv().await.unwrap();
            assert!(head.contains(from), "{head}");
        }
    }

    #[tokio::test]
    async fn a_page_that_does_not_move_ends_the_list() {
        let page = answer("200 OK", r#"{"events": [], "cursor": "40-0", "next_cursor": "40-0"}"#);
        let (address, _heads) = serve(vec![page.clone(), page], false).await;
        let client = Client::new(&address).unwrap();
        assert_eq!(client.all_events("/v1/events").await.unwrap(), Vec::<Value>::new());
    }
}
