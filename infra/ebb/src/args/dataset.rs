//! `ebb dataset …`.

use super::finite_f32;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use events_schema::DatasetName;
use std::path::PathBuf;

/// `ebb dataset …`
#[derive(Debug, Clone, Subcommand)]
pub enum DatasetCommand {
    /// Make Parquet or Arrow IPC files known where they are; nothing is copied
    #[command(
        after_help = "Example: ebb dataset register cifar s3://data/cifar/train-{0,1}.parquet --features image --label label --shape 3,32,32"
    )]
    Register(RegisterArgs),
    /// Convert files of this machine into the object store and register them
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
    /// List datasets
    List,
    /// Show one dataset
    Show {
        /// Its name.
        name: DatasetName,
    },
    /// Links to its files in the service's store, so that they can be read there without credentials for 15 minutes
    #[command(after_help = "Example: ebb dataset links digits | while read -r url; do curl -fsSOJ \"$url\"; done")]
    Links(DatasetLinksArgs),
    /// Forget a dataset that no unfinished job reads; its files stay
    Remove {
        /// Its name.
        name: DatasetName,
    },
}

/// Arguments of `ebb dataset register`.
#[derive(Debug, Clone, Args)]
pub struct RegisterArgs {
    /// Name jobs call it by.
    pub name: DatasetName,
    /// Its files, in order.
    #[arg(required = true, value_name = "URI")]
    pub uris: Vec<String>,
    /// Column of the features.
    #[arg(long, value_name = "COLUMN", conflicts_with = "tokens")]
    pub features: Option<String>,
    /// Column of the class numbers.
    #[arg(long, value_name = "COLUMN", conflicts_with = "tokens")]
    pub label: Option<String>,
    /// Column of the token lists.
    #[arg(long, value_name = "COLUMN")]
    pub tokens: Option<String>,
    /// Dimensions of one sample, for binary columns.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub shape: Vec<u32>,
    /// Number of classes.
    #[arg(long, value_name = "N")]
    pub classes: Option<u32>,
    /// Size of the vocabulary, for tokens.
    #[arg(long, value_name = "N")]
    pub vocabulary: Option<u32>,
    /// Tokens per row, for tokens.
    #[arg(long, value_name = "N")]
    pub length: Option<u32>,
}

/// Formats that can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    /// Rows of numbers with one label column; plain or gzip.
    Csv,
    /// MNIST's format: the images file, then the labels file; plain or gzip.
    Idx,
    /// Plain text, one token per character or byte.
    Text,
}

/// Arguments of `ebb dataset links`.
#[derive(Debug, Clone, Args)]
pub struct DatasetLinksArgs {
    /// Its name.
    pub name: DatasetName,
    /// Only the file of this number and those behind it.
    #[arg(long, value_name = "NUMBER")]
    pub from_number: Option<u64>,
    /// Only the file of this number and those before it.
    #[arg(long, value_name = "NUMBER")]
    pub to_number: Option<u64>,
}

/// Arguments of `ebb dataset import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// Name jobs call it by.
    pub name: DatasetName,
    /// The files.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// What they hold.
    #[arg(long, value_enum)]
    pub format: ImportFormat,
    /// csv: the label's column, by name (with a header line) or by number from 0 [default: the last].
    #[arg(long, value_name = "COLUMN")]
    pub label: Option<String>,
    /// csv: dimensions of one sample, for example 1,8,8.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub shape: Vec<u32>,
    /// csv, idx: every feature is multiplied by this, for example 0.0625 for pixels up to 16.
    #[arg(long, value_name = "F", value_parser = finite_f32, allow_negative_numbers = true)]
    pub scale: Option<f32>,
    /// Keep every K-th row out, in a second dataset NAME-test.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(2..))]
    pub split_every: Option<u32>,
    /// text: tokens per row [default: 65].
    #[arg(long, value_name = "N")]
    pub length: Option<u32>,
    /// text: a token is a byte, not a character; takes any file.
    #[arg(long)]
    pub bytes: bool,
}

const IMPORT_HELP: &str = "\
Examples:
  ebb dataset import mnist train-images-idx3-ubyte.gz train-labels-idx1-ubyte.gz --format idx --split-every 6
  ebb dataset import digits digits.csv --format csv --label label --shape 1,8,8 --scale 0.0625
  ebb dataset import shakespeare tinyshakespeare.txt --format text --length 65";
