    if [[ -d /opt/view ]]; then cp -R /opt/view/. "$viewroot/"; fi
