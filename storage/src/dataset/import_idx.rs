//! The IDX files of MNIST and its relatives: one of images, one of labels. Pixels stay bytes; a model sees them times 1/255.

use super::metadata::ElementType;
use super::source::plain;
use super::table::{ImportError, Imported, Row, RowKind, Split, Summary, import};
use events_schema::DatasetName;
use events_schema::dataset::SAMPLE_ELEMENTS_MAX;
use object_store::ObjectStore;
use std::io::Read;
use std::sync::Arc;

/// Type code of unsigned bytes in the magic number.
const UNSIGNED_BYTE: u8 = 0x08;

/// How to read a pair of IDX files.
#[derive(Debug, Clone, PartialEq)]
pub struct IdxOptions {
    /// Pixels are multiplied by this when read.
    pub scale: f32,
    /// Hold out every k-th image, beginning with the first, as `NAME-test`.
    pub test_every: Option<u32>,
}

impl Default for IdxOptions {
    fn default() -> Self {
        Self { scale: 1.0 / 255.0, test_every: None }
    }
}

/// Imports images (`[n, h, w]`, seen as `[1, h, w]`; `[n, c, h, w]` and `[n, features]` as they are) and their labels, plain or gzip.
pub async fn import_idx(
    store: &Arc<dyn ObjectStore>,
    name: &DatasetName,
    images: impl Read + Send + 'static,
    labels: impl Read + Send + 'static,
    options: &IdxOptions,
) -> Result<Imported, ImportError> {
    let scale = options.scale;
    import(store, name, options.test_every, move |split| read_idx(images, labels, scale, split)).await
}

fn read_idx(
    images: impl Read + Send + 'static,
    labels: impl Read + Send + 'static,
    scale: f32,
    split: &mut Split,
) -> Result<Summary, ImportError> {
    let mut images = Idx::open("images", images)?;
    let mut labels = Idx::open("labels", labels)?;
    let (count, shape) = match images.dimensions.as_slice() {
        [n, h, w] => (*n, vec![1, *h, *w]),
        [n, rest @ ..] if (1..=3).contains(&rest.len()) => (*n, rest.to_vec()),
        other => {
            return Err(ImportError::Source(format!(
                "the images file has dimensions {other:?}; expected [count, height, width]"
            )));
        }
    };
    let elements: u64 = shape.iter().map(|&n| u64::from(n)).product();
    if elements == 0 || elements > SAMPLE_ELEMENTS_MAX {
        return Err(ImportError::Source(format!(
            "images of shape {shape:?} have {elements} pixels; expected 1 to {SAMPLE_ELEMENTS_MAX}"
        )));
    }
    match labels.dimensions.as_slice() {
        [n] if *n == count => {}
        [n] => return Err(ImportError::Source(format!("{count} images but {n} labels; are these files of one set?"))),
        other => {
            return Err(ImportError::Source(format!("the labels file has dimensions {other:?}; expected [count]")));
        }
    }
    let mut pixels = vec![0; elements as usize];
    let mut label = [0];
    let mut classes = 0;
    for item in 0..count {
        images.item(item, &mut pixels)?;
        labels.item(item, &mut label)?;
        classes = classes.max(u32::from(label[0]) + 1);
        split.push(Row::Bytes(&pixels, u32::from(label[0])))?;
    }
    images.end(count)?;
    labels.end(count)?;
    let kind = RowKind::Classified { element: ElementType::U8, scale, shape };
    Ok(Summary { kind, classes: classes.max(2), class_names: Vec::new(), vocabulary: Vec::new() })
}

/// One IDX file: a magic number, dimensions, bytes.
struct Idx {
    what: &'static str,
    source: Box<dyn Read + Send>,
    dimensions: Vec<u32>,
}

impl Idx {
    fn open(what: &'static str, source: impl Read + Send + 'static) -> Result<Self, ImportError> {
        let mut source = plain(source).map_err(ImportError::Read)?;
        let mut word = || {
            let mut bytes = [0; 4];
            source.read_exact(&mut bytes).map(|()| bytes).map_err(|e| short(what, "its header", e))
        };
        let dimensions = match word()? {
            [0, 0, UNSIGNED_BYTE, dimensions] => dimensions,
            [0, 0, other, _] => {
                return Err(ImportError::Source(format!(
                    "the {what} file holds elements of type {other:#04x}; expected unsigned bytes (0x08)"
                )));
            }
            magic => {
                return Err(ImportError::Source(format!(
                    "the {what} file is not IDX: it begins with {magic:02x?}; expected [00, 00, 08, dimensions]"
                )));
            }
        };
        let dimensions = (0..dimensions).map(|_| word().map(u32::from_be_bytes)).collect::<Result<_, _>>()?;
        Ok(Self { what, source, dimensions })
    }

    fn item(&mut self, item: u32, out: &mut [u8]) -> Result<(), ImportError> {
        self.source.read_exact(out).map_err(|e| short(self.what, &format!("item {item} of {}", self.dimensions[0]), e))
    }

    fn end(&mut self, count: u32) -> Result<(), ImportError> {
        match self.source.read(&mut [0]).map_err(ImportError::Read)? {
            0 => Ok(()),
            _ => Err(ImportError::Source(format!(
                "the {} file goes on after the {count} items that its header promises",
                self.what
            ))),
        }
    }
}

fn short(what: &str, place: &str, error: std::io::Error) -> ImportError {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        ImportError::Source(format!("the {what} file ends inside {place}"))
    } else {
        ImportError::Read(error)
    }
}
