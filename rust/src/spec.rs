//! What a buffer's columns are: keys, element types, shapes and file names.
//!
//! A [`Spec`] holds the user's columns and the four that every buffer has, in key order. Making one
//! checks every key and size, so later arithmetic on them cannot overflow.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The frame's number in the dataset.
pub const INDEX_KEY: &str = "index";
/// The frame's number in its episode.
pub const FRAME_INDEX_KEY: &str = "frame_index";
/// The episode's number.
pub const EPISODE_INDEX_KEY: &str = "episode_index";
/// The frame's time in its episode, in seconds.
pub const TIMESTAMP_KEY: &str = "timestamp";

/// What a windowed key's pad mask is called: the key and this.
pub const IS_PAD_POSTFIX: &str = "_is_pad";

/// Two less than an array may have everywhere, for those of a batch and of a window.
const MOST_DIMENSIONS: usize = 30;

/// The longest file name that common file systems take, in bytes.
const LONGEST_FILE_NAME: usize = 255;

/// Element types, by their NumPy names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    Float32,
    Float64,
    Complex64,
    Complex128,
}

impl DType {
    /// All of them, with their NumPy names and bytes per element.
    pub const ALL: [(Self, &'static str, usize); 14] = [
        (Self::Bool, "bool", 1),
        (Self::Int8, "int8", 1),
        (Self::Int16, "int16", 2),
        (Self::Int32, "int32", 4),
        (Self::Int64, "int64", 8),
        (Self::UInt8, "uint8", 1),
        (Self::UInt16, "uint16", 2),
        (Self::UInt32, "uint32", 4),
        (Self::UInt64, "uint64", 8),
        (Self::Float16, "float16", 2),
        (Self::Float32, "float32", 4),
        (Self::Float64, "float64", 8),
        (Self::Complex64, "complex64", 8),
        (Self::Complex128, "complex128", 16),
    ];

    /// The type of that NumPy name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|entry| entry.1 == name)
            .map(|entry| entry.0)
    }

    /// All names, for messages.
    pub fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|entry| entry.1).collect()
    }

    /// The NumPy name.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// NumPy's letter for the kind of type.
    pub fn kind_code(self) -> u8 {
        match self {
            Self::Bool => b'b',
            Self::Int8 | Self::Int16 | Self::Int32 | Self::Int64 => b'i',
            Self::UInt8 | Self::UInt16 | Self::UInt32 | Self::UInt64 => b'u',
            Self::Float16 | Self::Float32 | Self::Float64 => b'f',
            Self::Complex64 | Self::Complex128 => b'c',
        }
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        Self::ALL[self as usize].2
    }
}

/// One frame's value under a key: `shape` elements of `dtype`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Element type.
    pub dtype: DType,
    /// Shape of one frame's value; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Field {
    /// Bytes per frame, if that fits the address space.
    fn row_bytes(&self) -> Option<usize> {
        self.shape
            .iter()
            .try_fold(self.dtype.size(), |bytes, &dim| bytes.checked_mul(dim))
    }
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype.name(), self.shape)
    }
}

/// A key with its field, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSpec {
    /// The key.
    pub key: String,
    /// The field.
    pub field: Field,
    /// Bytes per frame, not 0.
    pub row_bytes: usize,
}

impl ColumnSpec {
    /// The column's file name inside the buffer's directory.
    pub fn file_name(&self) -> String {
        file_name(&self.key)
    }
}

/// Positions of the buffer's own columns within [`Spec::columns`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnColumns {
    /// `index`.
    pub index: usize,
    /// `episode_index`.
    pub episode_index: usize,
    /// `timestamp`.
    pub timestamp: usize,
}

/// All columns of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    columns: Vec<ColumnSpec>,
    own: OwnColumns,
}

impl Spec {
    /// The columns of `fields` and the buffer's own four, checked for a buffer of `capacity`.
    pub fn new(fields: &BTreeMap<String, Field>, capacity: usize) -> Result<Self> {
        let mut all = own_fields();
        for (key, field) in fields {
            check_key(key)?;
            all.insert(key.clone(), field.clone());
        }
        let columns = all
            .into_iter()
            .map(|(key, field)| column(key, field, capacity))
            .collect::<Result<Vec<_>>>()?;
        let position = |key: &str| columns.partition_point(|column| column.key.as_str() < key);
        let own = OwnColumns {
            index: position(INDEX_KEY),
            episode_index: position(EPISODE_INDEX_KEY),
            timestamp: position(TIMESTAMP_KEY),
        };
        Ok(Self { columns, own })
    }

    /// The columns in key order.
    pub fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }

    /// Where the buffer's own columns are.
    pub fn own(&self) -> OwnColumns {
        self.own
    }

    /// The position of `key`.
    pub fn position(&self, key: &str) -> Result<usize> {
        self.columns
            .binary_search_by(|column| column.key.as_str().cmp(key))
            .map_err(|_| Error::UnknownKey {
                key: key.to_owned(),
                known: self
                    .columns
                    .iter()
                    .map(|column| column.key.clone())
                    .collect(),
            })
    }
}

fn own_fields() -> BTreeMap<String, Field> {
    let scalar = |dtype| Field {
        dtype,
        shape: Vec::new(),
    };
    BTreeMap::from([
        (INDEX_KEY.to_owned(), scalar(DType::Int64)),
        (FRAME_INDEX_KEY.to_owned(), scalar(DType::Int64)),
        (EPISODE_INDEX_KEY.to_owned(), scalar(DType::Int64)),
        (TIMESTAMP_KEY.to_owned(), scalar(DType::Float64)),
    ])
}

fn check_key(key: &str) -> Result<()> {
    let bytes = file_name(key).len();
    let expected = if key.is_empty() {
        "keys that are not empty"
    } else if key.starts_with('_') {
        "keys that do not begin with an underscore"
    } else if own_fields().contains_key(key) {
        "keys other than the buffer's own columns"
    } else if bytes > LONGEST_FILE_NAME {
        let expected = format!("keys whose file names have at most {LONGEST_FILE_NAME} bytes");
        return Err(Error::argument(
            "data_spec",
            expected,
            format!("{bytes} for {key:?}"),
        ));
    } else {
        return Ok(());
    };
    Err(Error::argument("data_spec", expected, format!("{key:?}")))
}

fn column(key: String, field: Field, capacity: usize) -> Result<ColumnSpec> {
    let argument = || format!("data_spec[{key:?}][\"shape\"]");
    if field.shape.contains(&0) {
        return Err(Error::argument(
            argument(),
            "dimensions of at least 1",
            format!("{:?}", field.shape),
        ));
    }
    if field.shape.len() > MOST_DIMENSIONS {
        return Err(Error::argument(
            argument(),
            format!("at most {MOST_DIMENSIONS} dimensions"),
            field.shape.len().to_string(),
        ));
    }
    let fits = |row_bytes: &usize| {
        row_bytes
            .checked_mul(capacity)
            .is_some_and(|bytes| isize::try_from(bytes).is_ok())
    };
    match field.row_bytes().filter(fits) {
        Some(row_bytes) => Ok(ColumnSpec {
            key,
            field,
            row_bytes,
        }),
        None => Err(Error::argument(
            argument(),
            "a column of fewer than 2^63 bytes",
            format!("{capacity} frames of {field}"),
        )),
    }
}

/// The file name of a key: what a file name cannot hold is percent-encoded, and so is a leading
/// dot, so that no key reaches outside the directory.
pub fn file_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for (position, character) in key.chars().enumerate() {
        match character {
            '/' | '\0' | '%' => name.push_str(&format!("%{:02X}", character as u32)),
            '.' if position == 0 => name.push_str("%2E"),
            _ => name.push(character),
        }
    }
    name
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    fn fields(key: &str, dtype: DType, shape: &[usize]) -> BTreeMap<String, Field> {
        BTreeMap::from([(
            key.to_owned(),
            Field {
                dtype,
                shape: shape.to_vec(),
            },
        )])
    }

    #[test]
    fn the_dtype_table_follows_the_enum() {
        for (position, (dtype, name, _)) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, position);
            assert_eq!(DType::from_name(name), Some(dtype));
            assert_eq!(serde_json::to_value(dtype).unwrap(), name);
        }
    }

    #[test]
    fn own_columns_are_found_among_the_users() {
        let spec = Spec::new(&fields("action", DType::Float32, &[2]), 4).unwrap();
        let key = |position: usize| spec.columns()[position].key.as_str();
        let own = spec.own();
        assert_eq!(
            [key(own.index), key(own.episode_index), key(own.timestamp)],
            [INDEX_KEY, EPISODE_INDEX_KEY, TIMESTAMP_KEY]
        );
        assert_eq!(key(spec.position("action").unwrap()), "action");
        assert!(matches!(
            spec.position("nothing"),
            Err(Error::UnknownKey { .. })
        ));
    }

    #[test]
    fn unusable_keys_and_sizes_are_refused() {
        let long = "k".repeat(256);
        for key in [
            "",
            "_x",
            "index",
            "timestamp",
            "episode_index",
            "frame_index",
            &long,
        ] {
            let refused = Spec::new(&fields(key, DType::Bool, &[]), 4);
            assert!(matches!(refused, Err(Error::Argument { .. })), "{key}");
        }
        for shape in [&[0][..], &[usize::MAX, 2], &[1 << 62]] {
            let refused = Spec::new(&fields("x", DType::Float64, shape), 4);
            assert!(matches!(refused, Err(Error::Argument { .. })), "{shape:?}");
        }
    }

    proptest! {
        #[test]
        fn file_names_are_one_plain_component_and_distinct(a in "[a./%\0\u{e9}]{1,6}", b in "[a./%\0\u{e9}]{1,6}") {
            let name = file_name(&a);
            let components: Vec<_> = Path::new(&name).components().collect();
            let plain = matches!(components.as_slice(), [Component::Normal(_)]);
            prop_assert!(plain);
            prop_assert!(!name.contains('\0'));
            prop_assert_eq!(a == b, name == file_name(&b));
        }
    }
}
