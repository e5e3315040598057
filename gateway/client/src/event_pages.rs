//! Every event up to now, page by page. Following what comes is `follow.rs`'s.

use crate::{Client, ClientError, Events};
use serde_json::Value;

/// Events asked for per page.
const PAGE_LIMIT: usize = 500;

/// The events of one list up to now, oldest first, a page at a time: whoever reads them holds one page, however many there are.
#[derive(Debug)]
pub struct EventPages<'a> {
    client: &'a Client,
    events: Events,
    from: Option<String>,
    ended: bool,
}

impl EventPages<'_> {
    /// The next page, which may be empty: what the service read for it held nothing of this list. `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Vec<Value>>, ClientError> {
        if self.ended {
            return Ok(None);
        }
        let mut page: Value = self.client.get(&self.events.page(PAGE_LIMIT, self.from.as_deref())).await?;
        let next = page["next_cursor"].as_str().map(str::to_owned);
        // One that does not move ends the list, so that no answer can keep us here for ever.
        self.ended = next.is_none() || next == self.from;
        self.from = next;
        match page["events"].take() {
            Value::Array(events) => Ok(Some(events)),
            _ => Ok(Some(Vec::new())),
        }
    }
}

impl Client {
    /// These events up to now, from behind a cursor on.
    #[must_use]
    pub fn event_pages(&self, events: &Events, from: Option<String>) -> EventPages<'_> {
        EventPages { client: self, events: events.clone(), from, ended: false }
    }

    /// Gives each of these events up to now, oldest first, from behind a cursor on.
    pub async fn each_event(
        &self,
        events: &Events,
        from: Option<String>,
        mut take: impl FnMut(&Value),
    ) -> Result<(), ClientError> {
        let mut pages = self.event_pages(events, from);
        while let Some(page) = pages.next().await? {
            page.iter().for_each(&mut take);
        }
        Ok(())
    }

    /// All of these events up to now, oldest first.
    pub async fn all_events(&self, events: &Events) -> Result<Vec<Value>, ClientError> {
        let mut all = Vec::new();
        self.each_event(events, None, |event| all.push(event.clone())).await?;
        Ok(all)
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
        assert_eq!(client.all_events(&Events::of_job("job-a")).await.unwrap(), [json!({"id": "a"})]);
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
        assert_eq!(client.all_events(&Events::all()).await.unwrap(), Vec::<Value>::new());
    }
}
