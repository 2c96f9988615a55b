use std::fs;

use half::{bf16, f16};

use super::*;

/// A temporary folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Result<Self, IoError> {
        let path = std::env::temp_dir().join(format!("hir-io-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|cause| IoError::Write { path: path.clone(), cause })?;
        Ok(Self(path))
    }

    fn file(&self, name: &str) -> Result<TensorFile, IoError> {
        format!("@{}/{name}", self.0.display()).parse()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tensors() -> Vec<NdArray> {
    let shaped = |data| NdArray { shape: vec![2, 1], data };
    vec![
        shaped(Data::Bool(vec![true, false])),
        shaped(Data::F64(vec![0.1, f64::NAN])),
        shaped(Data::F32(vec![0.1, f32::NEG_INFINITY])),
        shaped(Data::F16(vec![f16::from_f32(0.1), f16::MAX])),
        shaped(Data::I8(vec![-1, 1])),
        shaped(Data::I16(vec![i16::MIN, 1])),
        shaped(Data::I32(vec![i32::MIN, 1])),
        shaped(Data::I64(vec![i64::MIN, 1])),
        shaped(Data::U8(vec![u8::MAX, 1])),
        shaped(Data::U16(vec![u16::MAX, 1])),
        shaped(Data::U32(vec![u32::MAX, 1])),
        shaped(Data::U64(vec![u64::MAX, 1])),
        NdArray { shape: vec![], data: Data::I64(vec![7]) },
        NdArray { shape: vec![0, 3], data: Data::F32(vec![]) },
    ]
}

fn read(file: &TensorFile) -> Result<NdArray, IoError> {
    file.read(&InputFiles::default())
}

fn message<T>(result: Result<T, IoError>) -> String {
    result.err().map(|it| it.to_string()).unwrap_or_default()
}

#[test]
fn npy_round_trip() -> Result<(), IoError> {
    let folder = Folder::new("npy")?;
    let file = folder.file("x.npy")?;
    for tensor in tensors() {
        save(&[(file.clone(), &tensor)])?;
        assert_eq!(read(&file)?, tensor);
    }
    let bf16s = NdArray { shape: vec![1], data: Data::Bf16(vec![bf16::ONE]) };
    assert!(message(save(&[(file, &bf16s)])).ends_with("npy does not support bf16; use a .safetensors file"));
    Ok(())
}

#[test]
fn safetensors_round_trip() -> Result<(), IoError> {
    let folder = Folder::new("safetensors")?;
    let mut all = tensors();
    all.push(NdArray {
        shape: vec![3],
        data: Data::Bf16([0.1, -2.0, f32::NAN].map(bf16::from_f32).to_vec()),
    });
    let name = |at| folder.file(&format!("x.safetensors#t{at}"));
    let named = all.iter().enumerate().map(|(at, it)| Ok((name(at)?, it)));
    save(&named.collect::<Result<Vec<_>, IoError>>()?)?;
    for (at, tensor) in all.iter().enumerate() {
        assert_eq!(read(&name(at)?)?, *tensor);
    }
    assert!(
        message(read(&folder.file("x.safetensors")?))
            .contains("it contains 15 tensors; add `#KEY`, one of t0, t1")
    );
    assert!(
        message(read(&folder.file("x.safetensors#y")?))
            .contains("it contains no tensor `y`; its tensors are t0, t1")
    );
    let one = folder.file("y.safetensors")?;
    save(&[(one.clone(), &all[0])])?;
    assert_eq!(read(&one)?, all[0]);
    assert!(message(save(&[(one.clone(), &all[0]), (one, &all[1])])).contains("same place"));
    // Two paths of one file.
    let [a, b] = ["z.safetensors#a", "./z.safetensors#b"].map(|it| folder.file(it));
    let (a, b) = (a?, b?);
    save(&[(a.clone(), &all[0]), (b.clone(), &all[1])])?;
    assert_eq!((read(&a)?, read(&b)?), (all[0].clone(), all[1].clone()));
    Ok(())
}

#[test]
fn fortran_order_and_big_endian() -> Result<(), IoError> {
    let folder = Folder::new("fortran")?;
    let file = folder.file("x.npy")?;
    let mut header = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }".to_owned();
    header.push_str(&" ".repeat(128 - 10 - header.len() - 1));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    // In column-major order: [[0, 1, 2], [3, 4, 5]].
    [0i16, 3, 1, 4, 2, 5].iter().for_each(|it| bytes.extend(it.to_be_bytes()));
    let write = |bytes: &[u8]| {
        fs::write(file.path(), bytes).map_err(|cause| IoError::Write { path: file.path().to_owned(), cause })
    };
    write(&bytes)?;
    assert_eq!(read(&file)?, NdArray { shape: vec![2, 3], data: Data::I16(vec![0, 1, 2, 3, 4, 5]) });
    write(&bytes[..bytes.len() - 1])?;
    assert!(message(read(&file)).ends_with("write it again with `numpy.save`"));
    let bools = |elements: &[u8]| {
        let header = b"{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}\n";
        write(&[&b"\x93NUMPY\x01\x00\x38\x00"[..], header, elements].concat())?;
        read(&file)
    };
    assert_eq!(bools(&[0, 1])?, NdArray { shape: vec![2], data: Data::Bool(vec![false, true]) });
    assert!(message(bools(&[0, 2])).contains("a bool has the byte 2, which is neither 0 nor 1"));
    write(b"hello")?;
    assert!(message(read(&file)).ends_with("write it again with `numpy.save`"));
    assert!(message(read(&folder.file("none.npy")?)).starts_with("cannot read `"));
    Ok(())
}

#[test]
fn floats_are_converted_and_nothing_else() -> Result<(), IoError> {
    let load = |text: &str, dtype| text.parse::<TensorSource>()?.load(&InputFiles::default(), dtype);
    let loaded = load("2xf32=0.1 3", DType::BFloat)?;
    assert_eq!(loaded.converted, Some(DType::Float));
    assert_eq!(loaded.tensor.data.to_f64(), [0.10009765625, 3.0]);
    assert_eq!(load("2xf32=0.1 3", DType::Float)?.converted, None);
    assert_eq!(load("1xindex=5", DType::Int64)?.tensor.data, Data::I64(vec![5]));
    let error = "`literal` contains i32, the program requires f32; convert it first (only floating-point types are converted automatically)";
    assert_eq!(message(load("1xi32=5", DType::Float)), error);
    assert!(matches!(load("1xf32=5", DType::Complex64), Err(IoError::Unsupported(_))));
    Ok(())
}

#[test]
fn flags() -> Result<(), IoError> {
    let parse = |text: &str| text.parse::<TensorSource>();
    let npy = TensorFile::Npy("a/x.npy".into());
    assert_eq!(parse("@a/x.npy")?, TensorSource::File(npy));
    let keyed = TensorFile::Safetensors { path: "w.safetensors".into(), key: Some("layer.0".to_owned()) };
    assert_eq!(parse("@w.safetensors#layer.0")?, TensorSource::File(keyed.clone()));
    assert_eq!(keyed.to_string(), "@w.safetensors#layer.0");
    let shaped = |shape: &[usize], data| TensorSource::Literal(NdArray { shape: shape.to_vec(), data });
    assert_eq!(parse("2x2xi8=1,-2, 3 4")?, shaped(&[2, 2], Data::I8(vec![1, -2, 3, 4])));
    assert_eq!(parse("bool=true")?, shaped(&[], Data::Bool(vec![true])));
    assert_eq!(parse("3xf64=nan inf -1e3")?, shaped(&[3], Data::F64(vec![f64::NAN, f64::INFINITY, -1e3])));
    assert_eq!(parse("0xf32=")?, shaped(&[0], Data::F32(vec![])));
    let fault = |text: &str| message(parse(text));
    assert!(
        fault("@x.bin").starts_with(
            "`@x.bin`: the file name must end in `.npy` or `.safetensors`; expected `@FILE.npy`"
        )
    );
    assert!(fault("@x.safetensors#").contains("no key"));
    assert!(fault("4xf32=1 2 3").contains("the shape [4] does not match the number of values, 3"));
    assert!(fault("1xu8=256").contains("`256` is not a valid u8"));
    assert!(fault("2xq7=1 2").contains("`q7` is not an element type"));
    Ok(())
}

/// Generates the bytes of a file with some bytes changed, removed or duplicated.
fn mutated(bytes: Vec<u8>) -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
    use proptest::{collection::vec, prelude::*};
    let edit = (any::<prop::sample::Index>(), 0..4u8, any::<u8>(), 1..40usize);
    vec(edit, 1..8).prop_map(move |edits| {
        let mut bytes = bytes.clone();
        for (at, kind, byte, count) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            let end = (at + count).min(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.drain(at..end)),
                // Headers consist mainly of digits, brackets, quotes and names.
                2 => bytes[at] = b"0123456789[](){}'\",:<>|fiub"[usize::from(byte) % 27],
                _ => {
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        bytes
    })
}

fn npy_bytes(fortran_order: &str, shape: &str) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': {fortran_order}, 'shape': {shape}, }}\n");
    [&b"\x93NUMPY\x01\x00"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes(), &[0; 24]].concat()
}

proptest::proptest! {
    #[test]
    fn a_mutated_npy_file_is_read_or_refused(
        bytes in mutated(npy_bytes("True", "(2, 3)")),
        extents in proptest::collection::vec(proptest::prelude::any::<u64>(), 0..5),
    ) {
        let path = Path::new("x.npy");
        let is_torn = |it: Result<NdArray, IoError>| {
            it.is_ok_and(|it| it.data.len() != it.shape.iter().product::<usize>())
        };
        let mutated = is_torn(npy::read(path, &bytes));
        proptest::prop_assert!(!mutated);
        let shape: Vec<String> = extents.iter().map(|it| format!("{it},")).collect();
        let shape = "(".to_owned() + &shape.concat() + ")";
        let shaped = is_torn(npy::read(path, &npy_bytes("True", &shape)));
        proptest::prop_assert!(!shaped);
    }

    #[test]
    fn a_mutated_safetensors_file_is_read_or_refused(
        bytes in mutated({
            let header = br#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
            [&(header.len() as u64).to_le_bytes()[..], header, &[0; 24]].concat()
        }),
    ) {
        let read = safetensors_file::read(Path::new("x.safetensors"), &bytes, None);
        let is_torn = read.is_ok_and(|it| it.data.len() != it.shape.iter().product::<usize>());
        proptest::prop_assert!(!is_torn);
    }
}

#[test]
fn a_header_with_huge_or_nested_contents_is_refused() {
    let path = Path::new("x.npy");
    let huge = message(npy::read(path, &npy_bytes("True", "(4294967296, 4294967296)")));
    assert!(huge.contains("has more elements than memory can hold"), "{huge}");
    let nested = npy_bytes("True", "()").to_vec();
    let nested = String::from_utf8_lossy(&nested[10..]).replace("'<f4'", &("[".repeat(40) + &"]".repeat(40)));
    let bytes = [&b"\x93NUMPY\x01\x00"[..], &(nested.len() as u16).to_le_bytes(), nested.as_bytes()].concat();
    let nested = message(npy::read(path, &bytes));
    assert!(nested.contains("is not supported: only floats, integers and bools are"), "{nested}");
}
