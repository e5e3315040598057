//! Rows of a CSV file with a header, and what is wrong with a cell, by line and column. Lines that begin with `#` are comments.
//!
//! Written here and not taken from a library, because what reads traces is pure, and those that there are open files.

use std::collections::BTreeMap;

/// Rows read at most: ten times the largest public trace.
const ROWS_MAX: usize = 1_000_000;

/// Why a table cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A cell is not what it should be.
    #[error("line {line}: {column} is `{value}`; expected {expected}")]
    Cell {
        /// From 1, the header's included.
        line: usize,
        /// By its header.
        column: String,
        /// As it stands there.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A column is missing.
    #[error("there is no column `{column}`; the header has {header}")]
    Column {
        /// That is needed.
        column: &'static str,
        /// Those that there are.
        header: String,
    },
    /// A row has not as many cells as the header.
    #[error("line {line} has {cells} cells; expected {expected}, as the header has")]
    Row {
        /// From 1.
        line: usize,
        /// How many there are.
        cells: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Nothing to read.
    #[error("there are no rows below the header; expected at least one")]
    Empty,
    /// More than can be read.
    #[error("there are more than {ROWS_MAX} rows; cut the file")]
    Long,
}

/// A table that was read.
#[derive(Debug, Clone)]
pub struct Table {
    header: Vec<String>,
    columns: BTreeMap<String, usize>,
    rows: Vec<(usize, Vec<String>)>,
}

/// One row of it.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    table: &'a Table,
    line: usize,
    cells: &'a [String],
}

impl Table {
    /// Reads a table that has these columns.
    pub fn read(text: &str, needed: &[&'static str]) -> Result<Self, TableError> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        let mut lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let header: Vec<String> = lines.next().map(|(_, line)| cells(line)).unwrap_or_default();
        for column in needed {
            if !header.iter().any(|name| name == column) {
                return Err(TableError::Column { column, header: header.join(", ") });
            }
        }
        let mut rows = Vec::new();
        for (line, text) in lines {
            let cells = cells(text);
            if cells.len() != header.len() {
                return Err(TableError::Row { line, cells: cells.len(), expected: header.len() });
            }
            if rows.len() == ROWS_MAX {
                return Err(TableError::Long);
            }
            rows.push((line, cells));
        }
        if rows.is_empty() {
            return Err(TableError::Empty);
        }
        let columns = header.iter().cloned().zip(0..).collect();
        Ok(Self { header, columns, rows })
    }

    /// Its columns, from the left.
    #[must_use]
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Its rows.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(line, cells)| Row { table: self, line: *line, cells })
    }
}

impl<'a> Row<'a> {
    /// What stands in a column; nothing if there is no such column, or the cell is empty.
    #[must_use]
    pub fn text(&self, column: &str) -> Option<&'a str> {
        let index = self.table.columns.get(column)?;
        self.cells.get(*index).map(|cell| cell.trim()).filter(|cell| !cell.is_empty())
    }

    /// What is wrong with a cell.
    #[must_use]
    pub fn wrong(&self, column: &str, expected: &'static str) -> TableError {
        let value = self.text(column).unwrap_or_default().chars().take(80).collect();
        TableError::Cell { line: self.line, column: column.to_owned(), value, expected }
    }

    /// A cell that has to be there and mean something.
    pub fn take<T>(
        &self,
        column: &str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, TableError> {
        self.text(column).and_then(parse).ok_or_else(|| self.wrong(column, expected))
    }

    /// The same of one that may be empty, or whose column may be missing.
    pub fn take_optional<T>(
        &self,
        column: &str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, TableError> {
        match self.text(column) {
            None => Ok(None),
            Some(text) => parse(text).map(Some).ok_or_else(|| self.wrong(column, expected)),
        }
    }
}

/// A finite number that is not below a bound.
pub fn at_least(low: f64) -> impl Fn(&str) -> Option<f64> {
    move |text| text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= low)
}

/// The cells of a line: a cell in quotes may have commas, and two quotes in it are one.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.trim_end_matches('\r').chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' if quoted || cell.is_empty() => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            other => cell.push(other),
        }
    }
    cells.push(cell);
    cells
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cells_may_be_quoted_and_comments_are_passed_over() {
        let table = Table::read("# from somewhere\na,b\n\"x, \"\"y\"\"\",2\r\n", &["a"]).unwrap();
        let row = table.rows().next().unwrap();
        assert_eq!((row.text("a"), row.text("b"), row.text("c")), (Some("x, \"y\""), Some("2"), None));
    }

    #[test]
    fn what_is_wrong_is_named_by_line_and_column() {
        let table = Table::read("a,b\n1,2\n# note\n3,x\n", &["a", "b"]).unwrap();
        let of = |row: Row<'_>| row.take("b", "a number", at_least(0.0)).map_err(|error| error.to_string());
        let found: Vec<_> = table.rows().map(of).collect();
        assert_eq!(found, [Ok(2.0), Err("line 4: b is `x`; expected a number".to_owned())]);
        let error = |text| Table::read(text, &["b"]).unwrap_err().to_string();
        assert_eq!(error("a,c\n1,2\n"), "there is no column `b`; the header has a, c");
        assert_eq!(error("a,b\n1\n"), "line 2 has 1 cells; expected 2, as the header has");
        assert_eq!(error("a,b\n"), "there are no rows below the header; expected at least one");
    }
}
