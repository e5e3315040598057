//! Tests of imports and registration: what goes in comes out, and what does not fit is refused by name.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::faults::FaultyStore;
use crate::loader::{Loader, LoaderLimits};
use arrow::array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, Int64Array, ListArray, RecordBatch, StringArray, UInt8Array,
};
use arrow::datatypes::{DataType, Field, Int32Type};
use events_schema::dataset::{SampleShape, Samples};
use events_schema::job::JobSpec;
use events_schema::{Rank, Step};
use std::io::Cursor;

fn name() -> DatasetName {
    DatasetName::parse("d").unwrap()
}

fn store() -> Arc<dyn ObjectStore> {
    FaultyStore::new()
}

/// Every row in stored order.
async fn rows(store: &Arc<dyn ObjectStore>, info: &DatasetInfo) -> Samples {
    let text = r#"{"name":"t","model":{"kind":"mlp"},"dataset":"d","workers":{"max":1},"batch_size":65536,"epochs":1}"#;
    let spec = JobSpec::parse(&serde_json::from_str(text).unwrap()).unwrap();
    let loader = Loader::open_for_evaluation(Arc::clone(store), &spec, info, LoaderLimits::default()).await.unwrap();
    loader.samples(Rank(0), Step(0)).await.unwrap()
}

async fn csv(text: &str, options: CsvOptions) -> Result<(Samples, DatasetMetadata), ImportError> {
    let store = store();
    let imported = import_csv(&store, &name(), Cursor::new(text.to_owned()), &options).await?;
    Ok((rows(&store, &imported.dataset).await, load_metadata(&store, &imported.dataset).await.unwrap()))
}

#[tokio::test]
async fn csv_comes_out_as_it_went_in() {
    let (samples, metadata) = csv("a,b,class\n1.5,-2,0\n3,4e-1,2\n", CsvOptions::default()).await.unwrap();
    assert_eq!(samples, Samples::Classified { features: vec![1.5, -2.0, 3.0, 0.4], labels: vec![0, 2] });
    assert_eq!(metadata.sample, SampleShape::Classified { shape: vec![2], classes: 3 });

    let options = CsvOptions { label: LabelColumn::Name("class".into()), ..CsvOptions::default() };
    let (samples, metadata) = csv("class,b\nrose,1\noak,2\nrose,3\n", options).await.unwrap();
    assert_eq!(samples, Samples::Classified { features: vec![1.0, 2.0, 3.0], labels: vec![0, 1, 0] });
    assert_eq!(metadata.class_names, ["rose", "oak"]);

    let options = CsvOptions {
        label: LabelColumn::Index(0),
        element: ElementType::U8,
        scale: 0.5,
        shape: Some(vec![1, 2, 1]),
        delimiter: b';',
        ..CsvOptions::default()
    };
    let (samples, metadata) = csv("1;2;255\n0;0;16\n", options).await.unwrap();
    assert_eq!(samples, Samples::Classified { features: vec![1.0, 127.5, 0.0, 8.0], labels: vec![1, 0] });
    assert_eq!(metadata.sample, SampleShape::Classified { shape: vec![1, 2, 1], classes: 2 });
}

#[tokio::test]
async fn bad_csv_is_refused_with_line_and_column() {
    let bytes = || CsvOptions { element: ElementType::U8, ..CsvOptions::default() };
    let shaped = || CsvOptions { shape: Some(vec![3]), ..CsvOptions::default() };
    let named = || CsvOptions { label: LabelColumn::Name("z".into()), ..CsvOptions::default() };
    let cases: Vec<(&str, CsvOptions, &[&str])> = vec![
        ("a,b,y\n1,2,0\n1,x,0\n", CsvOptions::default(), &["line 3", "column 2 (`b`)", "`x` is not a finite number"]),
        ("1,nan,0\n", CsvOptions::default(), &["line 1", "column 2", "finite"]),
        ("1,2,0\n1,2\n", CsvOptions::default(), &["line 2", "2 fields, expected 3"]),
        ("1,2,0\n1,2,cat\n", CsvOptions::default(), &["line 2", "column 3", "`cat` is not a class"]),
        ("1,2,-1\n", CsvOptions::default(), &["line 1", "`-1` is not a class"]),
        ("1,2,0.5\n", CsvOptions::default(), &["`0.5` is not a class"]),
        ("1,2,\n", CsvOptions::default(), &["no class"]),
        ("1,2,99999999\n", CsvOptions::default(), &["class 99999999 is not below"]),
        ("1,256,0\n", bytes(), &["column 2", "`256` is not a whole number from 0 to 255"]),
        ("1,2,0\n", shaped(), &["shape [3] does not fit the 2 feature columns"]),
        ("a,b,y\n1,2,0\n", named(), &["there is no column `z`", "a, b, y"]),
        ("1,2,0\n", named(), &["no header"]),
        ("5\n", CsvOptions::default(), &["one column only"]),
        ("", CsvOptions::default(), &["no rows"]),
        ("a,b,y\n", CsvOptions::default(), &["no rows"]),
        ("1,2,0\n", CsvOptions { scale: 0.0, ..CsvOptions::default() }, &["scale 0"]),
        ("1,2,0\n", CsvOptions { test_every: Some(1), ..CsvOptions::default() }, &["nothing would be left"]),
    ];
    for (text, options, parts) in cases {
        let error = csv(text, options).await.unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
    }
}

#[tokio::test]
async fn large_tables_are_cut_into_blocks_and_split() {
    let store = store();
    let text: String = (0..20_000).map(|i| format!("{i},{},{}\n", i * 2, i % 7)).collect();
    let options = CsvOptions { test_every: Some(4), ..CsvOptions::default() };
    let imported = import_csv(&store, &name(), Cursor::new(text), &options).await.unwrap();
    let (train, test) = (imported.dataset, imported.test.unwrap());
    assert_eq!((train.rows, test.rows, test.name.as_str()), (15_000, 5_000, "d-test"));
    let metadata = load_metadata(&store, &train).await.unwrap();
    assert_eq!(metadata.block_rows().len(), 16);
    let Samples::Classified { features, labels } = rows(&store, &test).await else { panic!() };
    assert!(labels.iter().enumerate().all(|(i, &l)| l as usize == i * 4 % 7 && features[2 * i] == (i * 4) as f32));
    remove(&store, &train).await.unwrap();
    remove(&store, &train).await.unwrap();
    assert!(load_metadata(&store, &train).await.is_err());
}

fn idx(dimensions: &[u32], data: &[u8]) -> Cursor<Vec<u8>> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    dimensions.iter().for_each(|d| bytes.extend(d.to_be_bytes()));
    bytes.extend(data);
    Cursor::new(bytes)
}

#[tokio::test]
async fn idx_comes_out_as_it_went_in() {
    let store = store();
    let imported =
        import_idx(&store, &name(), idx(&[2, 1, 2], &[0, 255, 51, 102]), idx(&[2], &[3, 9]), &IdxOptions::default())
            .await
            .unwrap();
    let Samples::Classified { features, labels } = rows(&store, &imported.dataset).await else { panic!() };
    assert_eq!(labels, [3, 9]);
    assert_eq!(features, [0u8, 255, 51, 102].map(|v| f32::from(v) * (1.0 / 255.0)));
    assert_eq!(imported.dataset.sample, SampleShape::Classified { shape: vec![1, 1, 2], classes: 10 });
    for (images, labels, part) in [
        (idx(&[2, 1, 2], &[0; 3]), idx(&[2], &[0; 2]), "images file ends inside item 1 of 2"),
        (idx(&[2, 1, 2], &[0; 5]), idx(&[2], &[0; 2]), "goes on after the 2 items"),
        (idx(&[2, 1, 2], &[0; 4]), idx(&[3], &[0; 3]), "2 images but 3 labels"),
        (idx(&[2], &[0; 2]), idx(&[2], &[0; 2]), "expected [count, height, width]"),
        (Cursor::new(b"PNG.....".to_vec()), idx(&[2], &[0; 2]), "is not IDX"),
        (Cursor::new(vec![0, 0, 0x0d, 1, 0, 0, 0, 1]), idx(&[1], &[0]), "0x0d"),
        (Cursor::new(vec![0]), idx(&[1], &[0]), "its header"),
    ] {
        let error = import_idx(&store, &name(), images, labels, &IdxOptions::default()).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn text_becomes_overlapping_rows() {
    let store = store();
    let options = TextOptions { length: 4, ..TextOptions::default() };
    let imported = import_text(&store, &name(), Cursor::new("abcacbab"), &options).await.unwrap();
    assert_eq!(
        rows(&store, &imported.dataset).await,
        Samples::Tokens { tokens: vec![0, 1, 2, 0, 0, 2, 1, 0], length: 4 }
    );
    assert_eq!(load_metadata(&store, &imported.dataset).await.unwrap().vocabulary, ["a", "b", "c"]);
    let bytes = TextOptions { vocabulary: Vocabulary::Bytes, length: 3, test_every: Some(2) };
    let imported = import_text(&store, &name(), Cursor::new(b"\xff\x00abc".to_vec()), &bytes).await.unwrap();
    assert_eq!(rows(&store, &imported.test.unwrap()).await, Samples::Tokens { tokens: vec![255, 0, 97], length: 3 });
    assert_eq!(rows(&store, &imported.dataset).await, Samples::Tokens { tokens: vec![97, 98, 99], length: 3 });
    for (text, length, part) in
        [("ab", 4, "fewer than one row"), ("ab", 1, "expected 2 to"), ("", 2, "fewer than one row")]
    {
        let error = import_text(&store, &name(), Cursor::new(text), &TextOptions { length, ..TextOptions::default() })
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{error}");
    }
    let error = import_text(&store, &name(), Cursor::new(b"a\nb\xff".to_vec()), &TextOptions::default())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("line 2") && error.contains("--bytes"), "{error}");
}

/// Counts of the digits, as the data set's own description gives them.
#[tokio::test]
async fn the_digits_are_all_there() {
    let store = store();
    let imported = register_digits(&store).await.unwrap();
    assert_eq!(register_digits(&store).await.unwrap(), imported);
    let test = imported.test.unwrap();
    assert_eq!((imported.dataset.rows, test.rows), (1_437, 360));
    assert_eq!(load_metadata(&store, &imported.dataset).await.unwrap().block_rows().len(), 16);
    let mut counts = [0; 10];
    for info in [&imported.dataset, &test] {
        let Samples::Classified { features, labels } = rows(&store, info).await else { panic!() };
        assert!(
            features.iter().all(|v| (0.0..=1.0).contains(v) && (v * 16.0).fract() == 0.0)
                && features.len() == 64 * labels.len()
        );
        labels.iter().for_each(|&l| counts[l as usize] += 1);
    }
    assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
}

fn floats(rows: usize, width: i32) -> ArrayRef {
    let values = Arc::new(Float32Array::from_iter_values((0..rows * width as usize).map(|i| i as f32)));
    Arc::new(FixedSizeListArray::new(Arc::new(Field::new_list_field(DataType::Float32, false)), width, values, None))
}

/// One element per row, in so many lists of one.
fn lists_in_lists(rows: usize, depth: usize) -> ArrayRef {
    (1..depth).fold(floats(rows, 1), |inner, _| {
        let item = Arc::new(Field::new_list_field(inner.data_type().clone(), false));
        Arc::new(FixedSizeListArray::new(item, 1, inner, None))
    })
}

fn labels(rows: usize) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|i| i % 5)))
}

fn token_rows(lengths: &[usize]) -> ArrayRef {
    Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lengths.iter().map(|&n| Some((0..n as i32).map(Some)))))
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn parquet(&self, file: &str, batch: &RecordBatch, group_rows: usize) -> String {
        let path = self.0.path().join(file);
        let properties = parquet::file::properties::WriterProperties::builder()
            .set_max_row_group_row_count(Some(group_rows))
            .build();
        let mut writer = parquet::arrow::ArrowWriter::try_new(
            std::fs::File::create(&path).unwrap(),
            batch.schema(),
            Some(properties),
        )
        .unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        path.display().to_string()
    }

    fn ipc(&self, file: &str, batches: &[RecordBatch]) -> String {
        let path = self.0.path().join(file);
        let mut writer =
            arrow::ipc::writer::FileWriter::try_new(std::fs::File::create(&path).unwrap(), &batches[0].schema())
                .unwrap();
        batches.iter().for_each(|b| writer.write(b).unwrap());
        writer.finish().unwrap();
        path.display().to_string()
    }
}

/// Without a limit on where files lie.
fn everywhere() -> DatasetRoots {
    DatasetRoots::new(vec![DatasetRoot::folder(std::path::Path::new("/")).unwrap()])
}

fn registration(uris: &[String]) -> Registration {
    Registration {
        name: name(),
        uris: uris.to_vec(),
        sample: None,
        columns: ColumnNames::default(),
        element: None,
        scale: None,
    }
}

#[tokio::test]
async fn parquet_is_registered_in_place() {
    let (files, store) = (Files::new(), store());
    let table = batch(vec![("x", floats(1_000, 6)), ("label", labels(1_000))]);
    files.parquet("a.parquet", &table, 300);
    files.parquet("b.parquet", &table.slice(0, 10), 300);
    std::fs::write(files.0.path().join("notes.txt"), "not data").unwrap();
    let info =
        register(&store, &registration(&[format!("{}/", files.0.path().display())]), &everywhere()).await.unwrap();
    assert_eq!((info.rows, &info.sample), (1_010, &SampleShape::Classified { shape: vec![6], classes: 5 }));
    let Samples::Classified { features, labels } = rows(&store, &info).await else { panic!() };
    assert!(
        features[..6_000].iter().enumerate().all(|(i, &v)| v == i as f32)
            && features[6_000..].iter().enumerate().all(|(i, &v)| v == i as f32)
    );
    assert!(labels.iter().take(1_000).enumerate().all(|(i, &l)| l as usize == i % 5));
    let declared = Registration {
        sample: Some(SampleShape::Classified { shape: vec![1, 2, 3], classes: 9 }),
        scale: Some(2.0),
        ..registration(&[format!("file://{}/a.parquet", files.0.path().display())])
    };
    let info = register(&store, &declared, &everywhere()).await.unwrap();
    let Samples::Classified { features, .. } = rows(&store, &info).await else { panic!() };
    assert!(info.sample == declared.sample.unwrap() && features[5] == 10.0);
}

#[tokio::test]
async fn a_large_row_group_is_read_in_parts() {
    let (files, store) = (Files::new(), store());
    let path = files.parquet("a.parquet", &batch(vec![("x", floats(30_000, 128)), ("label", labels(30_000))]), 1 << 20);
    let info = register(&store, &registration(&[path]), &everywhere()).await.unwrap();
    assert_eq!(load_metadata(&store, &info).await.unwrap().block_rows(), [15_000, 15_000]);
    let Samples::Classified { features, .. } = rows(&store, &info).await else { panic!() };
    assert!(features.iter().enumerate().all(|(i, &v)| v == i as f32));
}

#[tokio::test]
async fn arrow_ipc_is_registered_in_place() {
    let (files, store) = (Files::new(), store());
    let pixels: ArrayRef = {
        let inner = FixedSizeListArray::new(
            Arc::new(Field::new_list_field(DataType::UInt8, false)),
            3,
            Arc::new(UInt8Array::from_iter_values((0..60).map(|i| i as u8))),
            None,
        );
        Arc::new(FixedSizeListArray::new(
            Arc::new(Field::new_list_field(inner.data_type().clone(), false)),
            2,
            Arc::new(inner),
            None,
        ))
    };
    let table = batch(vec![("other", labels(10)), ("image", pixels), ("label", labels(10))]);
    let path = files.ipc("a.arrow", &[table.clone(), table.slice(3, 4)]);
    let error = register(&store, &registration(std::slice::from_ref(&path)), &everywhere()).await.unwrap_err();
    assert!(error.wants_sample(), "the file is as it should be, and the registration has to say more: {error}");
    let error = error.to_string();
    assert!(error.contains("number of classes is unknown") && error.contains("[2, 3]"), "{error}");
    let declared = Registration {
        sample: Some(SampleShape::Classified { shape: vec![2, 3], classes: 5 }),
        ..registration(&[path])
    };
    let info = register(&store, &declared, &everywhere()).await.unwrap();
    let Samples::Classified { features, labels } = rows(&store, &info).await else { panic!() };
    assert_eq!((info.rows, features.len(), &labels[8..14]), (14, 84, &[3, 4, 3, 4, 0, 1][..]));
    assert!(features[..60].iter().enumerate().all(|(i, &v)| v == i as f32) && features[60] == 18.0);

    let tokens = files.ipc("t.arrow", &[batch(vec![("ids", token_rows(&[4, 4, 4]))])]);
    let declared =
        Registration { sample: Some(SampleShape::Tokens { length: 4, vocabulary: 4 }), ..registration(&[tokens]) };
    let info = register(&store, &declared, &everywhere()).await.unwrap();
    assert_eq!(rows(&store, &info).await, Samples::Tokens { tokens: [0, 1, 2, 3].repeat(3), length: 4 });
}

/// A sparse file: a beginning, nothing, and an end.
fn sparse(path: &std::path::Path, head: &[u8], bytes: u64, tail: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.set_len(bytes).unwrap();
    file.write_all_at(head, 0).unwrap();
    file.write_all_at(tail, bytes - tail.len() as u64).unwrap();
}

/// A Parquet file of four rows whose first row group says something else of itself.
fn forged(
    path: &std::path::Path,
    bytes: u64,
    change: impl Fn(parquet::file::metadata::RowGroupMetaDataBuilder) -> parquet::file::metadata::RowGroupMetaDataBuilder,
) {
    use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
    let true_one = path.with_extension("true");
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .build();
    let mut writer = parquet::arrow::ArrowWriter::try_new(
        std::fs::File::create(&true_one).unwrap(),
        batch(vec![("x", floats(4, 2)), ("label", labels(4))]).schema(),
        Some(properties),
    )
    .unwrap();
    writer.write(&batch(vec![("x", floats(4, 2)), ("label", labels(4))])).unwrap();
    writer.close().unwrap();
    let whole = bytes::Bytes::from(std::fs::read(&true_one).unwrap());
    std::fs::remove_file(&true_one).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&whole).unwrap();
    let group = change(metadata.row_group(0).clone().into_builder()).build().unwrap();
    let metadata = metadata.into_builder().set_row_groups(vec![group]).build();
    let mut footer = Vec::new();
    ParquetMetaDataWriter::new(&mut footer, &metadata).finish().unwrap();
    sparse(path, &whole, bytes, &footer);
}

#[tokio::test]
async fn sizes_that_a_file_claims_are_not_believed() {
    let (folder, store) = (tempfile::tempdir().unwrap(), store());
    let path = |name: &str| folder.path().join(name);
    const HUGE: u64 = 3_900_000_000;
    sparse(&path("footer.parquet"), b"PAR1", HUGE, &[&3_899_999_000_u32.to_le_bytes()[..], b"PAR1"].concat());
    sparse(&path("footer.arrow"), b"ARROW1", HUGE, &[&2_000_000_000_i32.to_le_bytes()[..], b"ARROW1"].concat());
    let deep = super::nesting::tests::nested(1_000_000);
    let trailer = [&(deep.len() as u32).to_le_bytes()[..], b"PAR1"].concat();
    std::fs::write(path("deep.parquet"), [&b"PAR1"[..], &deep, &trailer].concat()).unwrap();
    forged(&path("rows.parquet"), 100_000, |group| group.set_num_rows(i64::MAX));
    forged(&path("decoded.parquet"), 100_000, |group| group.set_total_byte_size(1 << 40));
    forged(&path("index.parquet"), HUGE, |group| {
        let columns = group.build().unwrap();
        let index = |column: &parquet::file::metadata::ColumnChunkMetaData| {
            let builder = column.clone().into_builder().set_offset_index_offset(Some(100));
            builder.set_offset_index_length(Some(2_000_000_000)).build().unwrap()
        };
        let changed = columns.columns().iter().map(index).collect();
        columns.into_builder().set_column_metadata(changed)
    });
    let wide = Arc::new(Field::new_list_field(DataType::Float32, false));
    let wide = arrow::datatypes::Schema::new(vec![
        Field::new("x", DataType::FixedSizeList(wide, i32::MAX), false),
        Field::new("label", DataType::Int64, false),
    ]);
    parquet::arrow::ArrowWriter::try_new(std::fs::File::create(path("wide.parquet")).unwrap(), Arc::new(wide), None)
        .unwrap()
        .close()
        .unwrap();
    for (name, part) in [
        ("footer.parquet", "its footer and page index have more than the 16777216 bytes"),
        ("deep.parquet", "nested deeper than the 64 levels"),
        ("footer.arrow", "its footer says that it has 2000000000 bytes"),
        ("rows.parquet", "at most 1000000 blocks of rows"),
        ("decoded.parquet", "once it is decompressed"),
        ("index.parquet", "its footer and page index have more than"),
        ("wide.parquet", "a row has at most 16777216 elements"),
    ] {
        let uris = [path(name).display().to_string()];
        let declared = Registration { sample: None, ..registration(&uris) };
        let error = register(&store, &declared, &everywhere()).await.unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(name), "{name}: {error}");
    }
}

#[tokio::test]
async fn files_outside_the_places_for_datasets_are_not_looked_at() {
    let (files, store) = (Files::new(), store());
    let inside = files.0.path().join("in");
    std::fs::create_dir(&inside).unwrap();
    let good = batch(vec![("x", floats(4, 2)), ("label", labels(4))]);
    let (own, other) = (files.parquet("in/a.parquet", &good, 100), files.parquet("b.parquet", &good, 100));
    let roots = DatasetRoots::new(vec![DatasetRoot::folder(&inside).unwrap()]);
    let refused = async |uri: &str| match register(&store, &registration(&[uri.to_owned()]), &roots).await {
        Err(RegisterError::Outside(outside)) => outside,
        other => panic!("{uri}: {other:?}"),
    };
    assert_eq!(register(&store, &registration(std::slice::from_ref(&own)), &roots).await.unwrap().rows, 4);
    // Whether it exists makes no difference.
    let nowhere = files.0.path().join("nothing.parquet").display().to_string();
    assert_eq!(
        refused(&other).await.to_string().replace(&other, ""),
        refused(&nowhere).await.to_string().replace(&nowhere, "")
    );
    refused("s3://bucket/a.parquet").await;
    std::os::unix::fs::symlink(&other, inside.join("link.parquet")).unwrap();
    refused(&format!("{}/", inside.display())).await;

    // Nor by metadata that somebody wrote into the store.
    let info = register(&store, &registration(&[other]), &everywhere()).await.unwrap();
    let by_key = info_of(&store, name(), &info.metadata_key, &info.metadata_digest, &roots).await;
    assert!(matches!(by_key, Err(LoadError::Outside(_))), "{by_key:?}");
}

#[tokio::test]
async fn metadata_is_read_from_the_objects_of_datasets_alone() {
    let (files, store) = (Files::new(), store());
    let rows = files.parquet("a.parquet", &batch(vec![("x", floats(4, 2)), ("label", labels(4))]), 100);
    let info = register(&store, &registration(&[rows]), &everywhere()).await.unwrap();
    load_metadata(&store, &info).await.unwrap();
    let elsewhere = "secrets/metadata.json";
    let bytes = Object::of_key(&store, &info.metadata_key).whole(1 << 20).await.unwrap();
    Object::of_key(&store, elsewhere).put(bytes.len() as u64, || std::iter::once(bytes.clone())).await.unwrap();
    for key in [elsewhere, "../../etc/secret"] {
        let said = load_metadata(&store, &DatasetInfo { metadata_key: key.to_owned(), ..info.clone() }).await;
        assert!(matches!(said, Err(LoadError::Unusable { source: MetadataError::Foreign, .. })), "{key}: {said:?}");
    }
}

#[tokio::test]
async fn files_that_do_not_fit_are_refused() {
    let (files, store) = (Files::new(), store());
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a"; 4]));
    let good = files.parquet("good.parquet", &batch(vec![("x", floats(4, 2)), ("label", labels(4))]), 100);
    let wider = files.parquet("wider.parquet", &batch(vec![("x", floats(4, 3)), ("label", labels(4))]), 100);
    let texts = files.parquet("texts.parquet", &batch(vec![("x", floats(4, 2)), ("label", Arc::clone(&text))]), 100);
    let none = files.parquet("none.parquet", &batch(vec![("a", text)]), 100);
    let two =
        files.parquet("two.parquet", &batch(vec![("a", floats(4, 2)), ("b", floats(4, 2)), ("label", labels(4))]), 100);
    let negative: ArrayRef = Arc::new(Int64Array::from(vec![-1, 0, 1, 2]));
    let negative = files.parquet("negative.parquet", &batch(vec![("x", floats(4, 2)), ("label", negative)]), 100);
    let deep = files.parquet("deep.parquet", &batch(vec![("x", lists_in_lists(4, 5)), ("label", labels(4))]), 100);
    let numerous: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 2, 2_999_999]));
    let numerous = files.parquet("numerous.parquet", &batch(vec![("x", floats(4, 2)), ("label", numerous)]), 100);
    let junk = files.0.path().join("junk.parquet").display().to_string();
    std::fs::write(&junk, "PAR1 and nothing more").unwrap();
    let csv = files.0.path().join("a.csv").display().to_string();
    std::fs::write(&csv, "1,2,3").unwrap();
    let with = |uri: &String, sample| Registration { sample: Some(sample), ..registration(std::slice::from_ref(uri)) };
    let cases: Vec<(Registration, &[&str])> = vec![
        (registration(&[]), &["no files"]),
        (registration(&["/nowhere/at/all.parquet".into()]), &["missing", "nowhere/at/all.parquet"]),
        (registration(&["gopher://x/y".into()]), &["lies outside the places", "--dataset-root"]),
        (registration(&[good.clone(), wider.clone()]), &["wider.parquet", "where the first file holds"]),
        (registration(&[texts]), &["texts.parquet", "column `label` of type Utf8", "integer"]),
        (registration(&[none]), &["cannot tell which column holds the labels", "`a` (Utf8)"]),
        (registration(&[two]), &["features", "`a` or `b`", "name it"]),
        (registration(&[negative]), &["holds -1"]),
        (registration(&[junk]), &["junk.parquet"]),
        (registration(&[csv]), &["neither Parquet nor", "dataset import"]),
        (
            with(&wider, SampleShape::Classified { shape: vec![2, 2], classes: 5 }),
            &["column `x` holds 3 elements", "[2, 2]"],
        ),
        (with(&good, SampleShape::Tokens { length: 2, vocabulary: 5 }), &["cannot tell which column holds the tokens"]),
        (registration(&[deep]), &["deep.parquet", "`sample.shape` is [1,1,1,1,1]"]),
        (registration(&[numerous]), &["numerous.parquet", "`sample.classes` is 3000000"]),
        (
            Registration {
                columns: ColumnNames { features: Some("q".into()), ..ColumnNames::default() },
                ..registration(&[good])
            },
            &["no column `q`", "`x`, `label`"],
        ),
    ];
    for (registration, parts) in cases {
        let error = register(&store, &registration, &everywhere()).await.unwrap_err();
        let text =
            format!("{error}: {}", std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default());
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
    }
}
