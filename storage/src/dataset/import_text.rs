//! Plain text as rows of tokens. A token is a character of the text, or a byte; rows overlap by one token, so that every token but
//! the first is predicted exactly once.

use super::source::plain;
use super::table::{ImportError, Imported, Row, RowKind, Split, Summary, import};
use events_schema::DatasetName;
use object_store::ObjectStore;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

/// Longest text: it is held in memory, because the vocabulary is known only at its end.
const TEXT_BYTES_MAX: u64 = 1 << 30;
/// Longest row, as in a sample's declaration.
const LENGTH_MAX: u32 = 65_536;
/// Most different characters.
const VOCABULARY_MAX: usize = 65_536;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Vocabulary {
    /// A character; the text's own characters in order of code point are tokens 0, 1, ….
    #[default]
    Characters,
    /// A byte; token b is byte b.
    Bytes,
}

/// How to read a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextOptions {
    /// What a token is.
    pub vocabulary: Vocabulary,
    /// Tokens per row, one more than the longest usable context. What is left at the end and does not fill a row is left out.
    pub length: u32,
    /// Hold out every k-th row, beginning with the first, as `NAME-test`.
    pub test_every: Option<u32>,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { vocabulary: Vocabulary::Characters, length: 129, test_every: None }
    }
}

/// Imports a text, plain or gzip.
pub async fn import_text(
    store: &Arc<dyn ObjectStore>,
    name: &DatasetName,
    source: impl Read + Send + 'static,
    options: &TextOptions,
) -> Result<Imported, ImportError> {
    let options = options.clone();
    import(store, name, options.test_every, move |split| read_text(source, &options, split)).await
}

fn read_text(
    source: impl Read + Send + 'static,
    options: &TextOptions,
    split: &mut Split,
) -> Result<Summary, ImportError> {
    let length = options.length as usize;
    if !(2..=LENGTH_MAX).contains(&options.length) {
        return Err(ImportError::Source(format!("rows of {length} tokens; expected 2 to {LENGTH_MAX}")));
    }
    let mut bytes = Vec::new();
    plain(source)
        .map_err(ImportError::Read)?
        .take(TEXT_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(ImportError::Read)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(ImportError::Source(format!(
            "the text is longer than {TEXT_BYTES_MAX} bytes; import it in pieces, as Parquet with a list of tokens per row"
        )));
    }
    let (tokens, vocabulary) = match options.vocabulary {
        Vocabulary::Bytes => {
            (bytes.into_iter().map(u32::from).collect(), (0..=255u8).map(|b| b.escape_ascii().to_string()).collect())
        }
        Vocabulary::Characters => characters(&bytes)?,
    };
    if tokens.len() < length {
        return Err(ImportError::Source(format!(
            "the text has {} tokens, fewer than one row of {length}",
            tokens.len()
        )));
    }
    let mut first = 0;
    while let Some(row) = tokens.get(first..first + length) {
        split.push(Row::Tokens(row))?;
        first += length - 1;
    }
    let classes = (vocabulary.len() as u32).max(2);
    Ok(Summary { kind: RowKind::Tokens { length: options.length }, classes, class_names: Vec::new(), vocabulary })
}

fn characters(bytes: &[u8]) -> Result<(Vec<u32>, Vec<String>), ImportError> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let line = bytes[..e.valid_up_to()].iter().filter(|&&b| b == b'\n').count() as u64 + 1;
        ImportError::Line {
            line,
            problem: format!("not UTF-8 text at byte {}; import it as bytes (--bytes)", e.valid_up_to()),
        }
    })?;
    // One by one: collecting would hold every character of the text first.
    let mut numbers: BTreeMap<char, u32> = BTreeMap::new();
    for character in text.chars() {
        numbers.insert(character, 0);
        if numbers.len() > VOCABULARY_MAX {
            return Err(ImportError::Source(format!(
                "the text has more than {VOCABULARY_MAX} different characters; import it as bytes (--bytes)"
            )));
        }
    }
    for (number, slot) in numbers.values_mut().enumerate() {
        *slot = number as u32;
    }
    let tokens = text.chars().map(|c| numbers[&c]).collect();
    Ok((tokens, numbers.keys().map(char::to_string).collect()))
}
