//! Shell scripts with places for what the spec says.
//!
//! A line `#@name` of a template is replaced by the text of that name, or left out if there is none. The templates are
//! complete scripts of their own, so that tools for shell understand them.

use super::words::quote;

/// The texts for a template's places.
#[derive(Default)]
pub(super) struct Parts(Vec<(&'static str, String)>);

impl Parts {
    /// Adds a text; an empty one leaves the place out.
    pub(super) fn with(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.0.push((name, text.into()));
        self
    }

    /// Adds a text if a condition holds.
    pub(super) fn when(self, condition: bool, name: &'static str, text: impl Into<String>) -> Self {
        if condition { self.with(name, text) } else { self }
    }

    /// Fills a template. A text is inserted as it is, never indented: it may hold lines within quotes.
    pub(super) fn fill(&self, template: &str) -> String {
        let mut script = String::with_capacity(template.len());
        for line in template.lines() {
            let Some(name) = line.trim_start().strip_prefix("#@") else {
                script.extend([line, "\n"]);
                continue;
            };
            for (_, text) in self.0.iter().filter(|(part, text)| *part == name && !text.is_empty()) {
                let indent = if text.trim_end().contains('\n') { "" } else { &line[..line.len() - name.len() - 2] };
                script.extend([indent, text.trim_end_matches('\n'), "\n"]);
            }
        }
        script
    }
}

/// Lines that set shell variables to exactly these values.
pub(super) fn settings<'a>(values: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    values.into_iter().map(|(name, value)| format!("{name}={}\n", quote(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_or_left_out() {
        let template = "#!/bin/bash\n# comment\nif true; then\n    #@one\n    #@two\n    #@three\nfi\n";
        let script = Parts::default()
            .with("one", "echo 1")
            .when(false, "two", "echo 2")
            .with("three", "a='\nb'\n")
            .fill(template);
        assert_eq!(script, "#!/bin/bash\n# comment\nif true; then\n    echo 1\na='\nb'\nfi\n");
    }

    #[test]
    fn settings_are_values_and_nothing_else() {
        assert_eq!(settings([("a", "b c"), ("d", "$(id)'")]), "a='b c'\nd='$(id)'\"'\"\n");
    }
}
