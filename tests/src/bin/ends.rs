//! The ends of the tunnel, as the image has them.

fn main() -> Result<(), String> {
    tributary_ends::run(std::env::args().skip(1))
}
