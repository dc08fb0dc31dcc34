//! The program of the ends of the tunnel, which travels to the pods of brokers.

use std::path::Path;

use tributary::render::Ends;

/// The program that holds connections through the tunnel beside brokers, if there is one.
pub(crate) fn read(path: &Path) -> Option<Ends> {
    let without = "connections through the tunnel end in this agent, and break when another one leads";
    match std::fs::read(path) {
        Ok(program) => {
            let (bytes, ends) = (program.len(), Ends::new(program));
            match &ends {
                Some(_) => {
                    tracing::info!(path = %path.display(), bytes, "the ends of the tunnel are in the pods of brokers")
                }
                None => {
                    tracing::warn!(path = %path.display(), bytes, "no ConfigMap can hold the ends of the tunnel: {without}")
                }
            }
            ends
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no ends of the tunnel: {without}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_or_too_large_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tributary-ends");
        assert!(read(&path).is_none());
        std::fs::write(&path, "program").unwrap();
        assert!(read(&path).is_some());
        std::fs::write(&path, vec![0; Ends::MOST + 1]).unwrap();
        assert!(read(&path).is_none());
    }
}
