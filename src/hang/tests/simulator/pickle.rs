//! Writes values as PyTorch's pickler does: protocol 2, equal strings and equal frames once.

use std::collections::HashMap;

use serde_json::Value;

/// Returns the pickle of a JSON value.
pub fn pickle(value: &Value) -> Vec<u8> {
    let mut writer = Writer { bytes: vec![0x80, 2], memo: HashMap::new() };
    writer.write(value, false);
    writer.bytes.push(b'.');
    writer.bytes
}

struct Writer {
    bytes: Vec<u8>,
    memo: HashMap<String, u32>,
}

impl Writer {
    fn write(&mut self, value: &Value, is_frame: bool) {
        match value {
            Value::Null => self.bytes.push(b'N'),
            Value::Bool(it) => self.bytes.push(if *it { 0x88 } else { 0x89 }),
            Value::Number(it) => self.integer(it.as_i64().unwrap_or(0)),
            Value::String(it) => self.text(it),
            Value::Array(items) => {
                self.bytes.extend([b']', b'(']);
                items.iter().for_each(|it| self.write(it, it.get("filename").is_some()));
                self.bytes.push(b'e');
            }
            Value::Object(map) if is_frame => {
                let key = value.to_string();
                if !self.recall(&key) {
                    self.dictionary(map);
                    self.remember(key);
                }
            }
            Value::Object(map) => self.dictionary(map),
        }
    }

    fn dictionary(&mut self, map: &serde_json::Map<String, Value>) {
        self.bytes.extend([b'}', b'(']);
        for (key, value) in map {
            self.text(key);
            self.write(value, false);
        }
        self.bytes.push(b'u');
    }

    fn integer(&mut self, value: i64) {
        match value {
            0..=0xff => self.bytes.extend([b'K', value as u8]),
            0x100..=0xffff => self.bytes.extend([b'M', value as u8, (value >> 8) as u8]),
            _ if i32::try_from(value).is_ok() => {
                self.bytes.push(b'J');
                self.bytes.extend((value as i32).to_le_bytes());
            }
            _ => {
                self.bytes.extend([0x8a, 8]);
                self.bytes.extend(value.to_le_bytes());
            }
        }
    }

    fn text(&mut self, text: &str) {
        let key = format!("\"{text}");
        if !self.recall(&key) {
            self.bytes.push(b'X');
            self.bytes.extend((text.len() as u32).to_le_bytes());
            self.bytes.extend(text.as_bytes());
            self.remember(key);
        }
    }

    fn recall(&mut self, key: &str) -> bool {
        let Some(slot) = self.memo.get(key) else { return false };
        match u8::try_from(*slot) {
            Ok(slot) => self.bytes.extend([b'h', slot]),
            Err(_) => {
                self.bytes.push(b'j');
                self.bytes.extend(slot.to_le_bytes());
            }
        }
        true
    }

    fn remember(&mut self, key: String) {
        let slot = self.memo.len() as u32;
        match u8::try_from(slot) {
            Ok(slot) => self.bytes.extend([b'q', slot]),
            Err(_) => {
                self.bytes.push(b'r');
                self.bytes.extend(slot.to_le_bytes());
            }
        }
        self.memo.insert(key, slot);
    }
}
