//! The ends of the tunnel: see the library.

/// The one of musl gives what was freed back to the kernel at once, and each piece that is carried is such memory.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> Result<(), String> {
    tributary_ends::run(std::env::args().skip(1))
}
