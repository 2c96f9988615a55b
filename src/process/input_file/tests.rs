use super::*;

#[test]
fn a_stream_is_read_up_to_its_limit_and_no_further() -> io::Result<()> {
    assert_eq!(stream_at_most(io::repeat(1).take(8), 8)?, [1; 8]);
    let fault = stream_at_most(io::repeat(1), 8).err().map(|it| it.kind());
    assert_eq!(fault, Some(io::ErrorKind::FileTooLarge));
    Ok(())
}

#[test]
fn a_file_that_changes_during_a_run_is_refused() -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("a.npy");
    fs::write(&path, "one")?;
    let files = InputFiles::default();
    assert_eq!(files.read_at_most(&path, 3)?, b"one");
    let fault = files.read_at_most(&path, 2).err().map(|it| it.to_string());
    assert_eq!(fault.as_deref(), Some("it has 3 bytes; the limit is 2"));
    assert_eq!(files.read_at_most(&path, 3)?, b"one");
    fs::write(&path, "two")?;
    assert!(
        files.read_at_most(&path, 3).is_err_and(|it| it.to_string().starts_with("its contents have changed"))
    );
    assert_eq!(files.read_again(&path, 3)?, b"two");
    Ok(())
}

#[test]
fn what_is_read_is_limited_and_not_what_is_stated() -> io::Result<()> {
    // A file of `/proc` states the size 0.
    let files = InputFiles::default();
    let status = Path::new("/proc/self/status");
    assert!(files.read_at_most(status, 1 << 16)?.starts_with(b"Name:"));
    let fault = InputFiles::default().read_at_most(status, 8).err().map(|it| it.kind());
    assert_eq!(fault, Some(io::ErrorKind::FileTooLarge));
    Ok(())
}
