//! The texts that the page and `answer` exchange, four bytes a call. A megabyte takes a few milliseconds, and no address leaves the module.
#![allow(
    unsafe_code,
    reason = "the attribute that gives an export its name counts as unsafe; there is no unsafe block"
)]

use std::cell::RefCell;

thread_local! {
    static REQUEST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Adds four bytes to the request, the lowest first.
#[unsafe(no_mangle)]
pub extern "C" fn put(bytes: u32) {
    REQUEST.with_borrow_mut(|it| it.extend(bytes.to_le_bytes()));
}

/// Answers the request, which has `len` bytes, and returns the length of the answer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn answer(len: u32) -> u32 {
    let mut request = REQUEST.take();
    request.truncate(len as usize);
    let answer = super::answer(&String::from_utf8_lossy(&request)).into_bytes();
    let len = answer.len() as u32;
    ANSWER.set(answer);
    len
}

/// Returns four bytes of the answer from `at` on, the lowest first; zeros behind its end.
#[unsafe(no_mangle)]
pub extern "C" fn get(at: u32) -> u32 {
    ANSWER.with_borrow(|it| {
        let bytes = [0, 1, 2, 3].map(|more| it.get(at as usize + more).copied().unwrap_or(0));
        u32::from_le_bytes(bytes)
    })
}
