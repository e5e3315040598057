//! Commands about datasets. An import runs here, in the client: it converts into the service's object store and registers what
//! it wrote by key and digest, so no rows pass through the gateway.

use crate::args::{ImportArgs, ImportFormat, RegisterArgs};
use crate::failure::Failure;
use crate::output::{Output, json, line, table};
use crate::store::ensure_credentials;
use clap::ValueEnum;
use events_schema::DatasetName;
use events_schema::dataset::DatasetInfo;
use gateway_api::{ColumnNames, Dataset, RegisterDataset, Sample};
use gateway_client::{Answer, Client};
use serde_json::json;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use storage::dataset::{
    CsvOptions, IdxOptions, ImportError, Imported, LabelColumn, TextOptions, Vocabulary, import_csv, import_idx,
    import_text,
};

/// Tokens per row of a text if nobody says: a context of 64 and the token after it, which fits a small model on a laptop.
const TEXT_LENGTH: u32 = 65;

/// The type of a store, as `storage` opens it.
type Store = Arc<dyn object_store::ObjectStore>;

/// `ebb dataset list`.
pub async fn list(client: &Client, output: Output) -> Result<(), Failure> {
    print_datasets(output, &client.datasets(None).await?);
    Ok(())
}

/// `ebb dataset show NAME`.
pub async fn show(client: &Client, output: Output, name: &DatasetName) -> Result<(), Failure> {
    let dataset = client.dataset(name.as_str()).await?;
    match output {
        Output::Json => json(&dataset),
        Output::Name | Output::Table => print_datasets(output, &[dataset]),
    }
    Ok(())
}

fn row(dataset: &Dataset) -> Vec<String> {
    let shown = match &dataset.sample {
        Sample::Tokens { length, vocabulary } => format!("{length} tokens of a vocabulary of {vocabulary}"),
        Sample::Classified { shape, classes } => format!("tensor {} of {classes} classes", json!(shape)),
        Sample::Other(sample) => json!(sample).to_string(),
    };
    vec![dataset.name.clone(), dataset.rows.to_string(), shown]
}

/// `ebb dataset remove NAME`.
pub async fn remove(client: &Client, output: Output, name: &DatasetName) -> Result<(), Failure> {
    client.remove_dataset(name.as_str()).await?;
    match output {
        Output::Json => json(&()),
        Output::Name => line(name.as_str()),
        Output::Table => line(format!("{name} is removed; its files stay where they are")),
    }
    Ok(())
}

/// `ebb dataset register NAME URI...`.
pub async fn register(client: &Client, output: Output, args: &RegisterArgs) -> Result<(), Failure> {
    let answer = client.register_dataset(&registration(args)?).await?;
    print_datasets(output, &[answer]);
    Ok(())
}

fn registration(args: &RegisterArgs) -> Result<RegisterDataset, Failure> {
    let columns =
        ColumnNames { features: args.features.clone(), label: args.label.clone(), tokens: args.tokens.clone() };
    let uris = args.uris.iter().map(|uri| absolute(uri)).collect::<Result<Vec<_>, _>>()?;
    let tensor = (!args.shape.is_empty()).then_some(&args.shape).zip(args.classes);
    let tokens = args.length.zip(args.vocabulary);
    let sample = match (tensor, tokens) {
        (Some((shape, classes)), None) => Some(Sample::Classified { shape: shape.clone(), classes }),
        (None, Some((length, vocabulary))) => Some(Sample::Tokens { length, vocabulary }),
        (None, None)
            if args.shape.is_empty()
                && args.classes.is_none()
                && args.length.is_none()
                && args.vocabulary.is_none() =>
        {
            None
        }
        _ => {
            return Err(Failure::Usage(
                "give --shape with --classes, or --length with --vocabulary, or none of them to let the files say it"
                    .to_owned(),
            ));
        }
    };
    Ok(RegisterDataset {
        name: args.name.to_string(),
        uris: Some(uris),
        sample,
        columns: (columns != ColumnNames::default()).then_some(columns),
        ..RegisterDataset::default()
    })
}

/// A path of this machine as a `file:` address; anything with a scheme as it is.
fn absolute(uri: &str) -> Result<String, Failure> {
    if uri.contains("://") {
        return Ok(uri.to_owned());
    }
    let path = std::fs::canonicalize(uri).map_err(|e| Failure::local(format!("`{uri}` cannot be found"), e))?;
    url::Url::from_file_path(&path)
        .map(String::from)
        .map_err(|()| Failure::plain(format!("`{}` is no absolute path", path.display())))
}

/// `ebb dataset import NAME FILE...`.
pub async fn import(client: &Client, output: Output, args: &ImportArgs) -> Result<(), Failure> {
    ensure_of_format(args)?;
    let server = client.server().await?;
    let store = storage::open_store(&server.store_url)
        .map_err(|e| Failure::local("the service's object store cannot be opened from here", e))?;
    ensure_credentials(&server.store_url).await?;
    let imported = convert(&store, &server.store_url, args).await?;
    let mut answers = Vec::new();
    for dataset in std::iter::once(&imported.dataset).chain(imported.test.as_ref()) {
        answers.push(register_metadata(client, dataset).await?);
    }
    print_datasets(output, &answers);
    Ok(())
}

/// Registers a dataset whose metadata object is in the service's store.
pub async fn register_metadata(client: &Client, dataset: &DatasetInfo) -> Result<Answer<Dataset>, Failure> {
    let registration = RegisterDataset {
        name: dataset.name.to_string(),
        metadata_key: Some(dataset.metadata_key.to_string()),
        metadata_digest: Some(dataset.metadata_digest.to_string()),
        ..RegisterDataset::default()
    };
    Ok(client.register_dataset(&registration).await?)
}

/// Refuses options of another format by name, instead of doing something else than what was asked.
fn ensure_of_format(args: &ImportArgs) -> Result<(), Failure> {
    use ImportFormat::{Csv, Idx, Text};
    let options: [(&str, bool, &[ImportFormat]); 5] = [
        ("--label", args.label.is_some(), &[Csv]),
        ("--shape", !args.shape.is_empty(), &[Csv]),
        ("--scale", args.scale.is_some(), &[Csv, Idx]),
        ("--length", args.length.is_some(), &[Text]),
        ("--bytes", args.bytes, &[Text]),
    ];
    let foreign = options.iter().filter(|(_, given, formats)| *given && !formats.contains(&args.format));
    let foreign: Vec<&str> = foreign.map(|(name, ..)| *name).collect();
    if foreign.is_empty() {
        return Ok(());
    }
    let own = options.iter().filter(|(_, _, formats)| formats.contains(&args.format)).map(|(name, ..)| *name);
    let own: Vec<&str> = own.chain(["--split-every"]).collect();
    let format = args.format.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    Err(Failure::Usage(format!("--format {format} has no {}; it takes {}", foreign.join(", "), own.join(", "))))
}

async fn convert(store: &Store, store_url: &str, args: &ImportArgs) -> Result<Imported, Failure> {
    let imported = match (args.format, args.files.as_slice()) {
        (ImportFormat::Csv, [file]) => {
            let label = match args.label.as_deref() {
                None => LabelColumn::Last,
                Some(text) => text.parse().map_or_else(|_| LabelColumn::Name(text.to_owned()), LabelColumn::Index),
            };
            let shape = (!args.shape.is_empty()).then(|| args.shape.clone());
            let options = CsvOptions {
                label,
                shape,
                scale: args.scale.unwrap_or(1.0),
                test_every: args.split_every,
                ..CsvOptions::default()
            };
            import_csv(store, &args.name, open(file)?, &options).await
        }
        (ImportFormat::Idx, [images, labels]) => {
            let options =
                IdxOptions { scale: args.scale.unwrap_or(IdxOptions::default().scale), test_every: args.split_every };
            import_idx(store, &args.name, open(images)?, open(labels)?, &options).await
        }
        (ImportFormat::Text, [file]) => {
            let vocabulary = if args.bytes { Vocabulary::Bytes } else { Vocabulary::Characters };
            let length = args.length.unwrap_or(TEXT_LENGTH);
            let options = TextOptions { vocabulary, length, test_every: args.split_every };
            import_text(store, &args.name, open(file)?, &options).await
        }
        (ImportFormat::Idx, files) => {
            return Err(Failure::Usage(format!(
                "--format idx takes two files, images then labels; given {}",
                files.len()
            )));
        }
        (ImportFormat::Csv | ImportFormat::Text, files) => {
            return Err(Failure::Usage(format!("this format takes one file; given {}", files.len())));
        }
    };
    let files = args.files.iter().map(|file| format!("`{}`", file.display())).collect::<Vec<_>>().join(" and ");
    imported.map_err(|error| {
        let of_store = matches!(error, ImportError::Store(_));
        let failure = Failure::local(format!("{files} cannot be imported as `{}`", args.name), error);
        if !of_store {
            return failure;
        }
        failure.advise(format!(
            "an import writes to the service's object store from here, {store_url}: set the credentials of that store here \
             (`ebb store check {store_url}` says what is missing), or import on a machine that has them"
        ))
    })
}

fn open(file: &Path) -> Result<File, Failure> {
    File::open(file).map_err(|e| Failure::local(format!("`{}` cannot be read", file.display()), e))
}

fn print_datasets(output: Output, datasets: &[Answer<Dataset>]) {
    match output {
        Output::Json => json(&json!({ "datasets": datasets })),
        Output::Name => datasets.iter().for_each(|dataset| line(&dataset.name)),
        Output::Table => {
            line(table(&["NAME", "ROWS", "SAMPLE"], &datasets.iter().map(|dataset| row(dataset)).collect::<Vec<_>>()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::args::{Cli, Command, DatasetCommand};
    use clap::Parser;

    #[test]
    fn options_of_another_format_are_refused_by_name() {
        let checked = |options: &str| {
            let line = format!("ebb dataset import d f {options}");
            match Cli::try_parse_from(line.split(' ')).unwrap().command {
                Command::Dataset { command: DatasetCommand::Import(args) } => ensure_of_format(&args),
                other => panic!("{other:?}"),
            }
        };
        let refused = checked("--format idx --label x --length 4 --scale 2").unwrap_err().to_string();
        assert_eq!(refused, "--format idx has no --label, --length; it takes --scale, --split-every");
        checked("--format csv --label x --shape 2 --scale 2 --split-every 5").unwrap();
        checked("--format text --length 9 --bytes").unwrap();
    }
}
