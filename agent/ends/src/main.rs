//! The ends of the tunnel: see the library.

fn main() -> Result<(), String> {
    tributary_ends::run(std::env::args().skip(1))
}
