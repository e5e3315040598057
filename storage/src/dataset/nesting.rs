//! How deeply the columns of a Parquet file are nested, before anything decodes its footer: the decoder calls itself for every
//! level, and a footer of a few megabytes can say enough levels to exhaust the stack, which ends the process. Pure.
//!
//! Reads just enough of the footer's encoding (Thrift's compact protocol) to find the schema. What it cannot read it leaves to
//! the decoder, which says what is wrong.

/// Deepest nesting that is decoded: a tensor of four dimensions takes a dozen levels.
pub(super) const LEVELS_MAX: usize = 64;

/// Field of `FileMetaData` that lists the schema, parents before their children.
const SCHEMA: i64 = 2;
/// Field of `SchemaElement` with the number of children that follow it.
const CHILDREN: i64 = 5;
/// Deepest nesting of values that are passed over; the format itself knows about five.
const SKIPPED_LEVELS_MAX: u32 = 16;

const STOP: u8 = 0;
const I32: u8 = 5;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Whether a footer's schema is nested deeper than [`LEVELS_MAX`].
pub(super) fn is_too_deep(footer: &[u8]) -> bool {
    let mut reader = Reader { rest: footer };
    reader.file().unwrap_or(false)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    /// `FileMetaData`; `None` where it cannot be read.
    fn file(&mut self) -> Option<bool> {
        let mut id = 0;
        loop {
            match self.field(&mut id)? {
                STOP => return Some(false),
                LIST if id == SCHEMA => {
                    if self.schema()? {
                        return Some(true);
                    }
                }
                kind => self.skip(kind, 0)?,
            }
        }
    }

    fn schema(&mut self) -> Option<bool> {
        let (count, kind) = self.list()?;
        if kind != STRUCT {
            return None;
        }
        // Children still to come of each open level.
        let mut open: Vec<u64> = Vec::new();
        for _ in 0..count {
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            let children = self.element()?;
            if children > 0 {
                open.push(children);
            }
            if open.len() > LEVELS_MAX {
                return Some(true);
            }
            while open.last() == Some(&0) {
                open.pop();
            }
        }
        Some(false)
    }

    /// One `SchemaElement`; how many children it has.
    fn element(&mut self) -> Option<u64> {
        let (mut id, mut children) = (0, 0);
        loop {
            match self.field(&mut id)? {
                STOP => return Some(children),
                I32 if id == CHILDREN => children = u64::try_from(self.signed()?).unwrap_or(0),
                kind => self.skip(kind, 0)?,
            }
        }
    }

    /// The next field's type; `id` becomes its number.
    fn field(&mut self, id: &mut i64) -> Option<u8> {
        let head = self.byte()?;
        if head == STOP {
            return Some(STOP);
        }
        *id = match head >> 4 {
            0 => self.signed()?,
            step => id.checked_add(i64::from(step))?,
        };
        Some(head & 0x0f)
    }

    fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.unsigned()? } else { u64::from(head >> 4) };
        Some((count, head & 0x0f))
    }

    fn skip(&mut self, kind: u8, level: u32) -> Option<()> {
        if level > SKIPPED_LEVELS_MAX {
            return None;
        }
        match kind {
            // A truth value of a field stands in its type.
            1 | 2 => Some(()),
            3 => self.byte().map(drop),
            4..=6 => self.unsigned().map(drop),
            7 => self.take(8),
            8 => {
                let bytes = self.unsigned()?;
                self.take(bytes)
            }
            9 | 10 => {
                let (count, kind) = self.list()?;
                // In a list a truth value is a byte.
                (0..count).try_for_each(|_| if kind <= 2 { self.take(1) } else { self.skip(kind, level + 1) })
            }
            STRUCT => {
                let mut id = 0;
                loop {
                    match self.field(&mut id)? {
                        STOP => return Some(()),
                        kind => self.skip(kind, level + 1)?,
                    }
                }
            }
            // Maps do not occur in the format.
            _ => None,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, bytes: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A footer whose schema is one column inside so many groups.
    pub(in super::super) fn nested(levels: usize) -> Vec<u8> {
        let mut footer = vec![0x15, 0x02, 0x19, 0xfc];
        let mut count = levels + 1;
        while count >= 0x80 {
            footer.push(count as u8 | 0x80);
            count >>= 7;
        }
        footer.push(count as u8);
        for level in 0..levels {
            // Repetition (not of the root), name `a`, one child.
            let repetition: &[u8] = if level == 0 { &[0x48] } else { &[0x35, 0x00, 0x18] };
            footer.extend([repetition, &[0x01, b'a', 0x15, 0x02, 0x00]].concat());
        }
        // Type INT32, repetition, name; then no rows and no row groups.
        footer.extend([0x15, 0x02, 0x25, 0x00, 0x18, 0x01, b'a', 0x00, 0x16, 0x00, 0x19, 0x0c, 0x00]);
        footer
    }

    #[test]
    fn only_deep_schemas_are_too_deep() {
        assert!(!is_too_deep(&nested(1)) && !is_too_deep(&nested(LEVELS_MAX)));
        assert!(is_too_deep(&nested(LEVELS_MAX + 1)) && is_too_deep(&nested(1_000_000)));
    }

    #[test]
    fn what_is_cut_off_or_no_footer_is_left_to_the_decoder() {
        let whole = nested(20);
        for length in 0..whole.len() {
            assert!(!is_too_deep(&whole[..length]));
        }
        for bytes in [vec![0xff; 64], vec![0x9c; 64], b"no footer at all".to_vec()] {
            assert!(!is_too_deep(&bytes));
        }
    }
}
