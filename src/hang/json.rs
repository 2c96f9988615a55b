//! Reads JSON into values: what PyTorch's JSON functions return, and pickles that were converted to JSON.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::value::{Id, Items, Node, TooManyValues, Values};

/// Reads the one value of a JSON text, which has at most so many values.
///
/// # Errors
/// Text that is no JSON, or nested more than 128 levels.
pub(crate) fn read(bytes: &[u8], most: Option<usize>) -> Result<(Values, Id), serde_json::Error> {
    let mut values = Values::with_limit(most);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let root = Seed(&mut values).deserialize(&mut reader)?;
    reader.end()?;
    Ok((values, root))
}

struct Seed<'v>(&'v mut Values);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Id;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Id, D::Error> {
        reader.deserialize_any(self)
    }
}

fn added<E: Error>(id: Result<Id, TooManyValues>) -> Result<Id, E> {
    id.map_err(E::custom)
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Id, E> {
        added(self.0.push(Node::None))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Id, E> {
        added(self.0.push(Node::Bool(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Id, E> {
        added(self.0.push(Node::Int(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Id, E> {
        let value = i64::try_from(value);
        added(self.0.push(value.map_or(Node::None, Node::Int)))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Id, E> {
        added(self.0.push(Node::Float))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Id, E> {
        added(self.0.push_text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Id, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element_seed(Seed(&mut *self.0))? {
            ids.push(id);
        }
        let mut items = Items::default();
        self.0.extend(&mut items, &ids).map_err(|_| A::Error::custom("too many values"))?;
        added(self.0.push(Node::List(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Id, A::Error> {
        let mut ids = Vec::new();
        while let Some(key) = map.next_key_seed(Seed(&mut *self.0))? {
            ids.push(key);
            ids.push(map.next_value_seed(Seed(&mut *self.0))?);
        }
        let mut items = Items::default();
        self.0.extend(&mut items, &ids).map_err(|_| A::Error::custom("too many values"))?;
        added(self.0.push(Node::Dict(items)))
    }
}
