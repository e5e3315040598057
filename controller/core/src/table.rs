//! An ordered map whose clone is free until it is written to: `decide` works on a clone of the whole state for every input.
//!
//! Sorted entries in chunks behind shared pointers; a write copies the chunk and the value it touches when somebody else still
//! holds them. Iteration is in key order, always. Not a general container: it has what the state needs.

use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder};
use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

/// Entries per chunk before it is split: a write to a shared table copies at most so many keys.
const CHUNK_LEN_MAX: usize = 64;

/// Entries that are passed by for one key before it is looked up instead: about as many as that costs.
const EACH_PASSED_MAX: usize = 16;

type Chunk<K, V> = Vec<(K, Arc<V>)>;

/// A persistent ordered map.
pub struct Table<K, V> {
    /// None is empty; keys ascend within and across chunks.
    chunks: Arc<Vec<Arc<Chunk<K, V>>>>,
    len: usize,
    /// Chunk and index of the entry that was written to last: where the next key is looked for first, because what is decided about many things goes from one to
    /// the next one. It may point at anything.
    near: (usize, usize),
}

impl<K, V> Table<K, V> {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { chunks: Arc::new(Vec::new()), len: 0, near: (0, 0) }
    }

    /// How many entries it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter().map(|(key, value)| (key, value.as_ref())))
    }

    /// All keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The lowest key and its value.
    #[must_use]
    pub fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }
}

impl<K: Ord, V> Table<K, V> {
    /// The chunk that holds `key` if any does: the last one that begins at or before it.
    fn chunk_of(&self, key: &K) -> usize {
        self.chunks.partition_point(|chunk| chunk.first().is_some_and(|(first, _)| first <= key)).saturating_sub(1)
    }

    fn locate(&self, key: &K) -> Option<(usize, usize)> {
        let (chunk, index) = self.near;
        let nearby = self.chunks.get(chunk).and_then(|entries| entries.get(index..)).unwrap_or(&[]);
        if let Some(next) = nearby.iter().take(2).position(|(known, _)| known == key) {
            return Some((chunk, index + next));
        }
        let chunk = self.chunk_of(key);
        let entries = self.chunks.get(chunk)?;
        entries.binary_search_by(|(k, _)| k.cmp(key)).ok().map(|index| (chunk, index))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        self.locate(key).map(|(chunk, index)| self.chunks[chunk][index].1.as_ref())
    }

    /// The values of these keys: quick where they are in order and hardly any lies between them, because each is looked for from the one before.
    pub fn each<'a, 'b, I>(&'a self, keys: I) -> impl Iterator<Item = Option<&'a V>> + use<'a, 'b, I, K, V>
    where
        I: Iterator<Item = &'b K>,
        K: 'b,
    {
        let mut keys = keys.peekable();
        let first = keys.peek().map(|first| self.range_from(Bound::Included(*first)));
        let mut entries = first.into_iter().flatten().peekable();
        keys.map(move |key| {
            let passed = (0..EACH_PASSED_MAX).take_while(|_| entries.next_if(|(known, _)| *known < key).is_some());
            let _passed = passed.count();
            match entries.peek() {
                Some((known, value)) if *known == key => Some(*value),
                _ => self.get(key),
            }
        })
    }

    /// Whether it has this key.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.locate(key).is_some()
    }

    /// Keys that are in only one of two tables or whose values were written to since one was cloned from the other, in order.
    /// Costs what differs, and a look at every chunk if anything was written.
    pub fn changed<'a>(&'a self, before: &'a Self) -> Vec<&'a K> {
        if Arc::ptr_eq(&self.chunks, &before.chunks) {
            return Vec::new();
        }
        let (mine, theirs) = (self.apart(before), before.apart(self));
        let (mut mine, mut theirs) = (mine.into_iter().peekable(), theirs.into_iter().peekable());
        let mut changed = Vec::new();
        loop {
            let order = match (mine.peek(), theirs.peek()) {
                (Some((mine, _)), Some((theirs, _))) => mine.cmp(theirs),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return changed,
            };
            let my = if order.is_le() { mine.next() } else { None };
            let their = if order.is_ge() { theirs.next() } else { None };
            match (my, their) {
                (Some((_, my)), Some((_, their))) if Arc::ptr_eq(my, their) => {}
                (my, their) => changed.extend(my.or(their).map(|(key, _)| key)),
            }
        }
    }

    /// Entries of the chunks that another table does not share.
    fn apart(&self, other: &Self) -> Vec<&(K, Arc<V>)> {
        let mut others = other.chunks.iter().peekable();
        let mut apart = Vec::new();
        // Chunks ascend by their first key, and a shared one begins with the same key in both.
        for chunk in self.chunks.iter() {
            if others.next_if(|other| Arc::ptr_eq(other, chunk)).is_some() {
                continue;
            }
            let begins = chunk.first().map(|(key, _)| key);
            while others.next_if(|other| other.first().map(|(key, _)| key) < begins).is_some() {}
            if !others.peek().is_some_and(|other| Arc::ptr_eq(other, chunk)) {
                apart.extend(chunk.iter());
            }
        }
        apart
    }

    /// Entries from `from` on, in key order.
    pub fn range_from<'a>(&'a self, from: Bound<&K>) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V> {
        let (chunk, index) = match from {
            Bound::Unbounded => (0, 0),
            Bound::Included(key) | Bound::Excluded(key) => {
                let chunk = self.chunk_of(key);
                let excluded = matches!(from, Bound::Excluded(_));
                let index = self
                    .chunks
                    .get(chunk)
                    .map_or(0, |entries| entries.partition_point(|(k, _)| if excluded { k <= key } else { k < key }));
                (chunk, index)
            }
        };
        let first = self.chunks.get(chunk).map_or(&[][..], |entries| &entries[index..]);
        let rest = self.chunks.get(chunk + 1..).unwrap_or(&[]);
        first.iter().chain(rest.iter().flat_map(|entries| entries.iter())).map(|(key, value)| (key, value.as_ref()))
    }
}

impl<K: Ord + Clone, V: Clone> Table<K, V> {
    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (chunk, index) = self.locate(key)?;
        self.near = (chunk, index);
        let chunks = Arc::make_mut(&mut self.chunks);
        Some(Arc::make_mut(&mut Arc::make_mut(&mut chunks[chunk])[index].1))
    }

    /// Sets a key's value; whether the key is new.
    pub fn insert(&mut self, key: K, value: V) -> bool {
        let at = self.chunk_of(&key);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(shared) = chunks.get_mut(at) else {
            chunks.push(Arc::new(vec![(key, Arc::new(value))]));
            self.len = 1;
            return true;
        };
        let chunk = Arc::make_mut(shared);
        match chunk.binary_search_by(|(k, _)| k.cmp(&key)) {
            Ok(index) => {
                chunk[index].1 = Arc::new(value);
                false
            }
            Err(index) => {
                chunk.insert(index, (key, Arc::new(value)));
                if chunk.len() > CHUNK_LEN_MAX {
                    let upper = chunk.split_off(CHUNK_LEN_MAX / 2);
                    chunks.insert(at + 1, Arc::new(upper));
                }
                self.len += 1;
                true
            }
        }
    }

    /// Takes a key out; whether it was there.
    pub fn remove(&mut self, key: &K) -> bool {
        self.take(key).is_some()
    }

    /// Takes a key's value out.
    pub fn take(&mut self, key: &K) -> Option<V> {
        let (at, index) = self.locate(key)?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[at]);
        let (_, value) = chunk.remove(index);
        if chunk.is_empty() {
            chunks.remove(at);
        }
        self.len -= 1;
        Some(Arc::unwrap_or_clone(value))
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self { chunks: Arc::clone(&self.chunks), len: self.len, near: self.near }
    }
}

/// Equal when the entries are: how they happen to be cut into chunks does not count.
impl<K: PartialEq, V: PartialEq> PartialEq for Table<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<C, K: Encode<C>, V: Encode<C>> Encode<C> for Table<K, V> {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, ctx: &mut C) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.map(self.len as u64)?;
        for (key, value) in self.iter() {
            key.encode(e, ctx)?;
            value.encode(e, ctx)?;
        }
        Ok(())
    }
}

impl<'b, C, K: Decode<'b, C> + Ord + Clone, V: Decode<'b, C> + Clone> Decode<'b, C> for Table<K, V> {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, minicbor::decode::Error> {
        let len = d.map()?.ok_or_else(|| minicbor::decode::Error::message("a table has a known length"))?;
        let mut table = Self::new();
        for _ in 0..len {
            let key = K::decode(d, ctx)?;
            table.insert(key, V::decode(d, ctx)?);
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        #[test]
        fn behaves_like_a_btree_map_and_never_changes_a_clone(actions in proptest::collection::vec((0u16..300, 0u8..4, 0u32..9), 0..800)) {
            let (mut table, mut map) = (Table::new(), BTreeMap::new());
            let mut frozen = (table.clone(), map.clone());
            for (index, (key, action, value)) in actions.into_iter().enumerate() {
                match action {
                    0 | 1 => prop_assert_eq!(table.insert(key, value), map.insert(key, value).is_none()),
                    2 => prop_assert_eq!(table.remove(&key), map.remove(&key).is_some()),
                    _ => {
                        if let Some(v) = table.get_mut(&key) { *v += 1; }
                        if let Some(v) = map.get_mut(&key) { *v += 1; }
                    }
                }
                if index % 97 == 0 {
                    prop_assert!(frozen.0.iter().eq(frozen.1.iter()));
                    frozen = (table.clone(), map.clone());
                }
                prop_assert_eq!(table.get(&key), map.get(&key));
                prop_assert_eq!(table.len(), map.len());
                let changed: BTreeSet<u16> = table.changed(&frozen.0).into_iter().copied().collect();
                prop_assert_eq!(&changed, &frozen.0.changed(&table).into_iter().copied().collect());
                for key in map.keys().chain(frozen.1.keys()) {
                    // A value that was written to may be the same again; one that is another was written to.
                    prop_assert!(map.get(key) == frozen.1.get(key) || changed.contains(key));
                }
                prop_assert!(changed.len() <= 2 * (index % 97 + 1));
            }
            prop_assert!(table.iter().eq(map.iter()));
            for keys in [(0u16..310).collect::<Vec<_>>(), (40..300).step_by(23).chain([7, 7, 280, 3]).collect(), Vec::new()] {
                prop_assert!(table.each(keys.iter()).eq(keys.iter().map(|key| map.get(key))));
            }
            for from in [0u16, 7, 150, 299, 400] {
                prop_assert!(table.range_from(Bound::Included(&from)).eq(map.range(from..)));
                prop_assert!(table.range_from(Bound::Excluded(&from)).eq(map.range((Bound::Excluded(from), Bound::Unbounded))));
            }
            let bytes = events_schema::batch::to_bytes(&table);
            prop_assert_eq!(events_schema::batch::from_bytes::<Table<u16, u32>>(&bytes).unwrap(), table);
        }
    }
}
