//! Reads a JSON object field by field and collects every problem, each naming the field, the value and what would be right.
//!
//! Used by every parser of outside input, so that a refusal reads the same everywhere. Knows nothing of any one object.

use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use std::ops::RangeInclusive;

/// One thing wrong with an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Path of the field, for example `workers.max`; empty for the whole body.
    pub field: String,
    /// The value as given, cut to 80 characters; `missing` when there is none.
    pub value: String,
    /// What would be right.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "the body".to_owned() } else { format!("`{}`", self.field) };
        match self.expected.strip_prefix(NO_SUCH_FIELD) {
            Some(instead) => write!(f, "{field} is no field here{instead}"),
            None => write!(f, "{field} is {}; expected {}", self.value, self.expected),
        }
    }
}

/// What is expected of a field that is unknown begins with this.
const NO_SUCH_FIELD: &str = "no such field";

/// Everything wrong with an input; never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct Problems(pub Vec<Problem>);

/// Problems reported at once; more add nothing to the first.
pub const PROBLEMS_MAX: usize = 32;
/// Characters of a bad value that are shown.
const SHOWN_VALUE_LEN: usize = 80;

/// A bad value as it is shown to whoever sent it.
#[must_use]
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= SHOWN_VALUE_LEN {
        text
    } else {
        text.chars().take(SHOWN_VALUE_LEN).chain("…".chars()).collect()
    }
}

/// A whole number of a document. JSON knows numbers only, so `3309.0`, which programs with floats write, is one too. Whoever read the text may have
/// come to the float next to the one that was written; below 2^52 the next one is no whole number and is refused, from there on it may be one.
#[must_use]
pub fn whole(value: &Value) -> Option<u64> {
    const EXACT_MAX: f64 = 4_503_599_627_370_495.0;
    let float = || value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=EXACT_MAX).contains(n)).map(|n| n as u64);
    value.as_u64().or_else(float)
}

/// The same, below zero too.
#[must_use]
pub fn whole_signed(value: &Value) -> Option<i64> {
    let below = || {
        value.as_f64().filter(|n| *n < 0.0).and_then(|n| whole(&Value::from(-n))).and_then(|n| i64::try_from(n).ok())
    };
    value.as_i64().or_else(|| whole(value).and_then(|n| i64::try_from(n).ok())).or_else(|| below().map(|n| -n))
}

/// The object being read, the path to it, and what was wrong so far.
pub struct Fields<'a> {
    path: String,
    object: Option<&'a Map<String, Value>>,
    known: Vec<&'static str>,
    /// Unknown ones of which it was said already where they belong.
    elsewhere: Vec<&'static str>,
    problems: Vec<Problem>,
}

impl<'a> Fields<'a> {
    /// Starts reading `value`, which should be an object, at `path` (empty for the body).
    #[must_use]
    pub fn new(path: &str, value: &'a Value) -> Self {
        let mut fields = Self {
            path: path.to_owned(),
            object: value.as_object(),
            known: Vec::new(),
            elsewhere: Vec::new(),
            problems: Vec::new(),
        };
        if fields.object.is_none() {
            fields.problems.push(Problem {
                field: path.to_owned(),
                value: shown(value),
                expected: "an object".to_owned(),
            });
        }
        fields
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Records that `name` is wrong. Where there is no object at all, that is said already and nothing is added.
    pub fn wrong(&mut self, name: &str, expected: impl Into<String>) {
        if self.object.is_none() {
            return;
        }
        let value = self.object.and_then(|o| o.get(name)).map_or_else(|| "missing".to_owned(), shown);
        self.problems.push(Problem { field: self.path_of(name), value, expected: expected.into() });
    }

    /// Refuses fields that belong somewhere else, and says where.
    pub fn elsewhere(&mut self, names: &[&'static str], place: &str) {
        let Some(object) = self.object else { return };
        for &name in names.iter().filter(|name| object.contains_key(**name)) {
            self.wrong(name, format!("{NO_SUCH_FIELD}; {place}"));
            self.elsewhere.push(name);
        }
    }

    /// Takes over what was wrong with a part.
    pub fn absorb<T>(&mut self, part: Result<T, Problems>) -> Option<T> {
        match part {
            Ok(value) => Some(value),
            Err(problems) => {
                self.problems.extend(problems.0);
                None
            }
        }
    }

    /// The raw value of an optional field; `null` counts as absent.
    pub fn raw(&mut self, name: &'static str) -> Option<&'a Value> {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
        self.object.and_then(|o| o.get(name)).filter(|v| !v.is_null())
    }

    /// Reads an optional nested value with its own parser, given its path.
    pub fn nested<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str, &'a Value) -> Result<T, Problems>,
    ) -> Option<T> {
        let value = self.raw(name)?;
        let path = self.path_of(name);
        self.absorb(parse(&path, value))
    }

    /// Reads a mandatory nested value.
    pub fn nested_required<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        parse: impl FnOnce(&str, &'a Value) -> Result<T, Problems>,
    ) -> Option<T> {
        if self.raw(name).is_none() && self.object.is_some() {
            self.wrong(name, expected);
            return None;
        }
        self.nested(name, parse)
    }

    /// An optional whole number within `range`.
    pub fn integer(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.raw(name)?;
        let number = whole(value).filter(|n| range.contains(n));
        if number.is_none() {
            self.wrong(name, format!("a whole number from {} to {}", range.start(), range.end()));
        }
        number
    }

    /// A mandatory whole number within `range`.
    pub fn integer_required(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        if self.raw(name).is_none() && self.object.is_some() {
            self.wrong(name, format!("a whole number from {} to {}", range.start(), range.end()));
            return None;
        }
        self.integer(name, range)
    }

    /// An optional finite number within `range`.
    pub fn number(&mut self, name: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let value = self.raw(name)?;
        let number = value.as_f64().filter(|n| range.contains(n));
        if number.is_none() {
            self.wrong(name, format!("a number from {} to {}", range.start(), range.end()));
        }
        number
    }

    /// An optional truth value.
    pub fn boolean(&mut self, name: &'static str) -> Option<bool> {
        let value = self.raw(name)?;
        let boolean = value.as_bool();
        if boolean.is_none() {
            self.wrong(name, "true or false");
        }
        boolean
    }

    /// An optional text, parsed by `parse`, which says on failure what would be right.
    pub fn text<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let value = self.raw(name)?;
        let parsed = value.as_str().ok_or_else(|| "a text".to_owned()).and_then(parse);
        match parsed {
            Ok(value) => Some(value),
            Err(expected) => {
                self.wrong(name, expected);
                None
            }
        }
    }

    /// A mandatory text.
    pub fn text_required<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if self.raw(name).is_none() && self.object.is_some() {
            self.wrong(name, expected);
            return None;
        }
        self.text(name, parse)
    }

    /// An optional word out of a closed list.
    pub fn word<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        let value = self.raw(name)?;
        let word = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        if word.is_none() {
            let listed = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
            let meant = value.as_str().and_then(|text| nearest(text, words.iter().map(|(word, _)| *word)));
            self.wrong(
                name,
                match meant {
                    Some(meant) => format!("one of {listed} (did you mean `{meant}`?)"),
                    None => format!("one of {listed}"),
                },
            );
        }
        word.map(|(_, value)| *value)
    }

    /// Ends the reading: refuses unknown fields with the nearest known name, then yields the value or all problems.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, Problems> {
        // The first of several that resemble nothing brings the list of what there is, which the others need not repeat.
        let mut listed = false;
        for name in self.object.into_iter().flat_map(Map::keys) {
            if self.problems.len() >= PROBLEMS_MAX {
                break;
            }
            if !self.known.contains(&name.as_str()) && !self.elsewhere.contains(&name.as_str()) {
                let expected = match nearest(name, self.known.iter().copied()) {
                    Some(known) => format!("{NO_SUCH_FIELD}; did you mean `{known}`?"),
                    None if listed => NO_SUCH_FIELD.to_owned(),
                    None => {
                        listed = true;
                        format!("{NO_SUCH_FIELD}; the fields here are {}", self.known.join(", "))
                    }
                };
                self.problems.push(Problem {
                    field: self.path_of(name),
                    value: self.object.and_then(|o| o.get(name)).map_or_else(String::new, shown),
                    expected,
                });
            }
        }
        self.problems.truncate(PROBLEMS_MAX);
        match value {
            Some(value) if self.problems.is_empty() => Ok(value),
            _ => Err(Problems(self.problems)),
        }
    }
}

/// Longest text that is compared with known names. Comparing costs the product of both lengths, and nobody misspells more.
const NEAREST_LEN_MAX: usize = 128;

/// The known name that was probably meant, if any is close enough.
pub fn nearest<'k>(given: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    if given.len() > NEAREST_LEN_MAX {
        return None;
    }
    /// Jaro-Winkler likeness under which a suggestion would rather confuse.
    const LIKENESS_MIN: f64 = 0.75;
    // In short words one slip, such as two letters swapped, is a large part of the word.
    let slip = |name: &str| if strsim::osa_distance(given, name) == 1 { 0.9 } else { 0.0 };
    let likeness = |name: &str| strsim::jaro_winkler(given, name).max(slip(name));
    known
        .filter(|name| name.len() <= NEAREST_LEN_MAX)
        .map(|name| (likeness(name), name))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// A single problem as a whole refusal.
#[must_use]
pub fn problem(field: impl Into<String>, value: impl Into<String>, expected: impl Into<String>) -> Problems {
    Problems(vec![Problem { field: field.into(), value: value.into(), expected: expected.into() }])
}
