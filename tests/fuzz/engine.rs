//! libFuzzer on one target, which `FUZZ_TARGET` names. `tests/fuzz/run` builds and starts it.
#![no_main]
#![allow(unsafe_code, reason = "libFuzzer calls by C's rules")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use peak_alloc::PeakAlloc;
use tributary_fuzz::{Target, most_memory, target};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

static TARGET: OnceLock<Target> = OnceLock::new();

/// Called once, before libFuzzer looks at its options: writes the seeds and the words where they say that it finds them.
#[unsafe(no_mangle)]
extern "C" fn LLVMFuzzerInitialize(_: *const i32, _: *const *const *const u8) -> i32 {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let target = *TARGET.get_or_init(|| target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name:?} is no target")));
    if let Some(work) = std::env::var_os("FUZZ_WORK").map(PathBuf::from) {
        write(&target, &work).unwrap_or_else(|error| panic!("failed to write to {}: {error}", work.display()));
    }
    0
}

/// A panic that leaves it aborts the process, and libFuzzer keeps what caused it.
///
/// # Safety
/// `data` is `size` bytes, as libFuzzer promises.
#[unsafe(no_mangle)]
unsafe extern "C" fn LLVMFuzzerTestOneInput(data: *const u8, size: usize) -> i32 {
    // SAFETY: the caller's promise. Of no bytes, the pointer may be null.
    let data = if size == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(data, size) } };
    let Some(target) = TARGET.get() else { return 0 };
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    (target.run)(data);
    let took = MEMORY.peak_usage().saturating_sub(before);
    let most = most_memory(data.len());
    assert!(took <= most, "{took} bytes of memory for {} of input, at most {most}", data.len());
    0
}

fn write(target: &Target, work: &Path) -> std::io::Result<()> {
    let words: String = target.words.iter().map(|word| format!("\"{}\"\n", in_dictionary(word))).collect();
    std::fs::write(work.join("words"), words)?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        std::fs::write(work.join("corpus").join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}

/// The tables have bytes as `\x00`, as libFuzzer does; its quotes, and other backslashes, are escaped.
fn in_dictionary(word: &str) -> String {
    let word = word.replace("\\\"", "\"");
    let escape = |(at, c): (usize, char)| match c {
        '"' => "\\\"".to_owned(),
        '\\' if !word[at..].starts_with("\\x") => "\\\\".to_owned(),
        '\n' | '\t' | '\r' => format!("\\x{:02x}", c as u32),
        c => c.to_string(),
    };
    word.char_indices().map(escape).collect()
}
