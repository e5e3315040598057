//! Makes the digits that ship with the product, from their CSV form (64 pixels from 0 to 16, then the class; plain or gzip).
//!
//!     cargo run --release -p storage --example make_digits -- digits.csv.gz storage/data
//!
//! Every 5th row, beginning with the first, is held out.

use events_schema::DatasetName;
use object_store::{ObjectStoreExt, path::Path};
use std::error::Error;
use std::fs::File;
use storage::dataset::{CsvOptions, DIGITS, DIGITS_TEST, ElementType, import_csv, load_metadata};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, folder] = arguments.as_slice() else {
        return Err("give the CSV file and the folder to write to".into());
    };
    let store = storage::open_store("memory:///")?;
    let options = CsvOptions {
        shape: Some(vec![1, 8, 8]),
        element: ElementType::U8,
        scale: 1.0 / 16.0,
        test_every: Some(5),
        ..CsvOptions::default()
    };
    let imported = import_csv(&store, &DatasetName::parse(DIGITS)?, File::open(source)?, &options).await?;
    for info in [Some(imported.dataset), imported.test].into_iter().flatten() {
        let metadata = load_metadata(&store, &info).await?;
        let [partition] = metadata.partitions.as_slice() else { return Err("expected one part".into()) };
        let file = store.get(&Path::from(partition.location.as_str())).await?.bytes().await?;
        assert!(info.name.as_str() == DIGITS || info.name.as_str() == DIGITS_TEST);
        std::fs::write(format!("{folder}/{}.parquet", info.name), &file)?;
        println!("{}: {} rows, {} blocks, {} bytes", info.name, info.rows, partition.blocks.len(), file.len());
    }
    Ok(())
}
