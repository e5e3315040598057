//! Large files straight from the object store: a link from the service, the bytes from the store. A link is a secret while it is good, so
//! it is printed only where it was asked for and stands in no failure.

use crate::args::DatasetLinksArgs;
use crate::failure::Failure;
use crate::find;
use crate::output::{Output, advise, json, line};
use futures::StreamExt;
use gateway_api::LinkedFile;
use gateway_client::{Client, Stretch};
use serde_json::json;
use std::io::Write;
use std::time::Duration;

/// A store that takes longer for a connection is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence in the middle of a download.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Where a model's bytes come from.
pub enum Source {
    /// The service, which has the model of this job.
    Service(String),
    /// The store, by a link.
    Store(StoreFile),
}

/// A file in the store. Not printable: it holds a link.
pub struct StoreFile {
    url: String,
    bytes: u64,
}

impl Source {
    /// The source of a job's model.
    pub async fn of_model(client: &Client, job: &str, direct: bool) -> Result<Self, Failure> {
        if !direct {
            return Ok(Self::Service(job.to_owned()));
        }
        let LinkedFile { url, bytes, .. } = client.model_link(job).await?.into_typed();
        Ok(Self::Store(StoreFile { url, bytes }))
    }

    /// Writes its bytes to `sink`; how many they were.
    pub async fn download(&self, client: &Client, sink: &mut impl Write) -> Result<u64, Failure> {
        match self {
            Self::Service(job) => Ok(client.download_model(job, sink).await?),
            Self::Store(file) => file.download(sink).await,
        }
    }
}

impl StoreFile {
    async fn download(&self, sink: &mut impl Write) -> Result<u64, Failure> {
        // The error of a request names its URL, which is the secret.
        let failed = |error: reqwest::Error| {
            Failure::local("the model cannot be fetched from the object store", error.without_url())
                .advise("leave --direct out to fetch it through the service, if the store cannot be reached from here")
        };
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(SILENCE_MAX)
            .build()
            .map_err(failed)?;
        let response =
            http.get(&self.url).send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
        let (mut pieces, mut total) = (response.bytes_stream(), 0);
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(failed)?;
            if total + piece.len() as u64 > self.bytes {
                return Err(Failure::plain(format!(
                    "the object store gives more than the {} bytes of the model; fetch it without --direct",
                    self.bytes
                )));
            }
            sink.write_all(&piece).map_err(|e| Failure::local("the file cannot be written", e))?;
            total += piece.len() as u64;
        }
        if total == self.bytes {
            return Ok(total);
        }
        Err(Failure::plain(format!("the object store gave {total} of {} bytes; try again", self.bytes)))
    }
}

/// `ebb model link ID`.
pub async fn model_link(client: &Client, output: Output, id: &str) -> Result<(), Failure> {
    let job = find::job(client, id).await?;
    let LinkedFile { url, expires_at, bytes } = client.model_link(&job).await?.into_typed();
    match output {
        Output::Json => json(&json!({"job": job, "url": url, "expires_at": expires_at, "bytes": bytes})),
        Output::Name => line(url),
        Output::Table => {
            line(url);
            advise(format!("{bytes} bytes; whoever has this link may read them until {expires_at}"));
        }
    }
    Ok(())
}

/// `ebb dataset links NAME`: a line for each file, its link or where its owner keeps it.
pub async fn dataset_links(client: &Client, output: Output, args: &DatasetLinksArgs) -> Result<(), Failure> {
    let numbers = Stretch { from: args.from_number, to: args.to_number };
    let (name, files) = (&args.name, client.dataset_links(args.name.as_str(), numbers).await?);
    if output == Output::Json {
        json(&json!({"dataset": name, "files": files}));
        return Ok(());
    }
    for file in &files {
        line(file.url.as_ref().or(file.uri.as_ref()).map_or("", String::as_str));
    }
    if let Some(expires_at) = files.iter().find_map(|file| file.expires_at.as_ref()).filter(|_| output == Output::Table)
    {
        let bytes: u64 = files.iter().map(|file| file.bytes).sum();
        advise(format!(
            "{} files, {bytes} bytes; whoever has a link may read its file until {expires_at}",
            files.len()
        ));
    }
    Ok(())
}
